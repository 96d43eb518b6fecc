"""Sampling parameters as vLLM's render API answers them: its names, its defaults, its order, its checks.

A parameter that has its default is left out, except the six that are real numbers, the lists, and what the answer
always sets; greedy sampling leaves out two of the six. Source: `vllm/sampling_params.py` and recorded answers of 0.32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dispatcher.errors import InvalidOption
from service.dialects.vllm_errors import invalid_field
from service.dialects.vllm_render_schema import ChatCompletion, Generation, TextCompletion

LEAST_TEMPERATURE = 0.01
"""A temperature between 0 and this is raised to it."""
GREEDY_BELOW = 1e-5
DELTA, FINAL_ONLY = 1, 2
"""`output_kind` of a stream, and of one answer."""
MAX_BIAS = 100.0

NEUTRAL_FIELDS = {
    "model", "messages", "tools", "tool_choice", "reasoning_effort", "documents", "add_generation_prompt",
    "continue_final_message", "add_special_tokens", "chat_template", "chat_template_kwargs", "stream", "stream_options",
    "truncate_prompt_tokens", "truncation_side", "return_token_offsets", "cache_salt", "priority", "max_tokens",
    "max_completion_tokens", "use_beam_search", "include_reasoning",
}  # fmt: skip
"""Fields that change no parameter but `output_kind` and `max_tokens`."""
SAMPLING_FIELDS = frozenset(ChatCompletion.model_fields.keys() | TextCompletion.model_fields.keys()) - NEUTRAL_FIELDS
"""All other fields that are read."""

_DEFAULTS = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}


def sampling_params(form: Generation, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a form asks for; `max_tokens` is set once the length of the prompt is known.

    `defaults` are the model's own (its generation_config.json). Raises `InvalidField`, or `InvalidOption` where vLLM
    names no field.
    """
    _, max_tokens = form.max_output
    if max_tokens is not None and max_tokens < 1:
        raise invalid_field(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    if SAMPLING_FIELDS.isdisjoint(form.model_fields_set):
        return _unsaid(bool(form.stream), tuple(defaults.items()))
    return _params(form, defaults)


@lru_cache(maxsize=64)
def _unsaid(stream: bool, defaults: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """The parameters of a request that says nothing about them. Never changed by who gets them."""
    return _params(Generation(stream=stream), dict(defaults))


def _params(form: Generation, defaults: Mapping[str, Any]) -> dict[str, Any]:
    main = {name: _first(getattr(form, name), defaults.get(name), default) for name, default in _DEFAULTS.items()}
    n = _first(form.n, 1)
    _check_main(main, n)
    if 0 < main["temperature"] < LEAST_TEMPERATURE:
        main["temperature"] = LEAST_TEMPERATURE
    is_greedy = main["temperature"] < GREEDY_BELOW
    if is_greedy:
        main["top_k"] = 0
        if n > 1:
            raise InvalidOption(f"n must be 1 when using greedy sampling, got {n}.")
    stop = _stop(form)
    _check_rest(form)
    n_prompt_logprobs = form.prompt_logprobs
    if n_prompt_logprobs is None and form.echo:
        n_prompt_logprobs = form.n_echoed_logprobs
    longest = max(map(len, stop), default=1) - 1
    params: dict[str, Any] = {
        "n": _unless(n, 1),
        "presence_penalty": float(main["presence_penalty"]),
        "frequency_penalty": float(main["frequency_penalty"]),
        "repetition_penalty": float(main["repetition_penalty"]),
        "temperature": float(main["temperature"]),
        "watermarking": form.watermarking,
        "top_p": None if is_greedy else float(main["top_p"]),
        "top_k": _unless(main["top_k"], 0),
        "min_p": None if is_greedy else float(main["min_p"]),
        "seed": _unless(form.seed, -1),
        "stop": stop,
        "stop_token_ids": list(dict.fromkeys(form.stop_token_ids or ())),
        "ignore_eos": _unless(form.ignore_eos, False),
        "max_tokens": 0,
        "min_tokens": _unless(form.min_tokens, 0),
        "logprobs": None if form.logprob_token_ids else form.n_logprobs,
        "prompt_logprobs": n_prompt_logprobs,
        "logprob_token_ids": form.logprob_token_ids,
        "skip_special_tokens": _unless(form.skip_special_tokens, True),
        "spaces_between_special_tokens": _unless(form.spaces_between_special_tokens, True),
        "include_stop_str_in_output": _unless(form.include_stop_str_in_output, False),
        "output_kind": DELTA if form.stream else FINAL_ONLY,
        "stream_interval": form.stream_interval,
        "skip_clone": True,
        "output_text_buffer_length": None if form.include_stop_str_in_output else _unless(longest, 0),
        "structured_outputs": _structured_outputs(form),
        "logit_bias": _logit_bias(form),
        "allowed_token_ids": form.allowed_token_ids,
        "extra_args": _extra_args(form),
        "bad_words": list(dict.fromkeys(form.bad_words or ())),
        "skip_reading_prefix_cache": n_prompt_logprobs is not None,
        "thinking_token_budget": _unless(form.thinking_token_budget, -1),
        "repetition_detection": form.repetition_detection,
        "routed_experts_prompt_start": _unless(form.routed_experts_prompt_start, 0),
    }
    return {name: value for name, value in params.items() if value is not None}


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _unless(value: Any, default: Any) -> Any:
    return None if value == default else value


def _stop(form: Generation) -> list[str]:
    stop = [form.stop] if isinstance(form.stop, str) else form.stop or []
    if not all(stop):
        raise InvalidOption("stop cannot contain an empty string.")
    return stop


def _check_main(main: Mapping[str, Any], n: int) -> None:
    if n < 1:
        raise InvalidOption(f"n must be at least 1, got {n}.")
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2.0 <= main[name] <= 2.0:
            raise InvalidOption(f"{name} must be in [-2, 2], got {main[name]}.")
    penalty, temperature, top_p, top_k, min_p = (
        main[name] for name in ("repetition_penalty", "temperature", "top_p", "top_k", "min_p")
    )
    if not (math.isfinite(penalty) and penalty > 0.0):
        raise InvalidOption(f"repetition_penalty must be greater than zero, got {penalty}.")
    if temperature < 0.0:
        raise invalid_field(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if not 0.0 <= temperature <= 2.0:
        raise invalid_field(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
    if not 0.0 < top_p <= 1.0:
        raise invalid_field(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    if top_k < -1:
        raise InvalidOption(f"top_k must be 0 (disable), or at least 1, got {top_k}.")
    if not 0.0 <= min_p <= 1.0:
        raise InvalidOption(f"min_p must be in [0, 1], got {min_p}.")


def _check_rest(form: Generation) -> None:
    _, max_tokens = form.max_output
    if form.min_tokens < 0:
        raise InvalidOption(f"min_tokens must be greater than or equal to 0, got {form.min_tokens}.")
    if max_tokens is not None and form.min_tokens > max_tokens:
        text = f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {form.min_tokens}."
        raise InvalidOption(text)
    for name, value in (("logprobs", form.n_logprobs), ("prompt_logprobs", form.prompt_logprobs)):
        if value is not None and value < -1:
            raise invalid_field(f"{name} must be non-negative or -1, got {value}.", name, value)
    if not all(form.bad_words or ()):
        raise InvalidOption("bad_words cannot contain an empty string.")


def _structured_outputs(form: Generation) -> dict[str, Any] | None:
    """What was asked for, `response_format` under the name that the engine knows."""
    outputs = dict(form.structured_outputs or {})
    wanted = form.response_format or {}
    if wanted.get("type") == "json_object":
        outputs["json_object"] = True
    elif wanted.get("type") == "json_schema":
        schema = wanted.get("json_schema")
        if not isinstance(schema, dict):
            text = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
            raise invalid_field(text, "response_format")
        outputs["json"] = schema.get("schema")
    return outputs or None


def _logit_bias(form: Generation) -> dict[str, float] | None:
    if form.logit_bias is None:
        return None
    if not all(token.strip().removeprefix("-").isdecimal() for token in form.logit_bias):
        raise invalid_field("logit_bias contains key(s) that cannot be converted to integer token IDs.", "logit_bias")
    return {str(int(token)): min(MAX_BIAS, max(-MAX_BIAS, bias)) for token, bias in form.logit_bias.items()}


def _extra_args(form: Generation) -> dict[str, Any] | None:
    extra = dict(form.vllm_xargs or {})
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if value := getattr(form, name):
            extra[name] = value
    return extra or None
