"""What a PromQL expression reads and which labels its result has, checked against metrics that exist."""

from __future__ import annotations

from typing import Any

import promql_parser as promql

TARGET_LABELS = frozenset({"job", "instance"})
"""What Prometheus adds to everything that it scrapes."""

Labels = frozenset[str]
Metrics = dict[str, Labels]
"""Labels of a metric by its name."""


class BadQuery(Exception):
    """The expression names a metric or a label that does not exist."""


def result_labels(expression: str, metrics: Metrics) -> Labels:
    """The labels of an expression's result; raises `BadQuery`, and `ValueError` for a wrong syntax."""
    return _labels(promql.parse(expression), metrics)


def matchers(expression: str) -> list[tuple[str, str, str]]:
    """Metric, label and value of every `label="value"` in an expression."""
    found: list[tuple[str, str, str]] = []
    for selector in _selectors(promql.parse(expression)):
        for matcher in selector.matchers.matchers:
            if matcher.op == promql.MatchOp.Equal and matcher.value:
                found.append((selector.name, matcher.name, matcher.value))
    return found


def _selectors(node: Any) -> list[Any]:
    if isinstance(node, promql.VectorSelector):
        return [node]
    if isinstance(node, promql.MatrixSelector):
        return [node.vector_selector]
    children = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "param")]
    return [one for child in (*children, *getattr(node, "args", ())) if child is not None for one in _selectors(child)]


def _labels(node: Any, metrics: Metrics) -> Labels:
    if isinstance(node, promql.VectorSelector):
        return _selected(node, metrics)
    if isinstance(node, promql.MatrixSelector):
        return _selected(node.vector_selector, metrics)
    if isinstance(node, promql.AggregateExpr):
        return _aggregated(node, metrics)
    if isinstance(node, promql.BinaryExpr):
        return _joined(node, metrics)
    if isinstance(node, promql.Call):
        inner = frozenset[str]().union(*(_labels(argument, metrics) for argument in node.args))
        if node.func.name != "histogram_quantile":
            return inner
        if "le" not in inner:
            raise BadQuery(f"histogram_quantile without `le`: {node.prettify()}")
        return inner - {"le"}
    if isinstance(node, promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
        return _labels(node.expr, metrics)
    return frozenset()


def _selected(selector: Any, metrics: Metrics) -> Labels:
    if selector.name not in metrics:
        raise BadQuery(f"no metric named {selector.name}")
    labels = metrics[selector.name]
    unknown = {matcher.name for matcher in selector.matchers.matchers} - labels
    if unknown:
        raise BadQuery(f"{selector.name} has no label {', '.join(sorted(unknown))}")
    return labels


def _aggregated(node: Any, metrics: Metrics) -> Labels:
    inner = _labels(node.expr, metrics)
    if node.modifier is None:
        return frozenset()
    wanted = frozenset(node.modifier.labels)
    if wanted - inner:
        raise BadQuery(f"aggregated by labels that are not there: {', '.join(sorted(wanted - inner))}")
    return wanted if node.modifier.type == promql.AggModifierType.By else inner - wanted


def _joined(node: Any, metrics: Metrics) -> Labels:
    left, right = _labels(node.lhs, metrics), _labels(node.rhs, metrics)
    if not (_selectors(node.lhs) and _selectors(node.rhs)):
        return left | right
    matching = node.modifier.matching if node.modifier else None
    if matching is None:
        if left != right:
            raise BadQuery(f"sides with different labels: {sorted(left)} and {sorted(right)}")
        return left
    unknown = frozenset(matching.labels) - (left & right)
    if unknown:
        raise BadQuery(f"matched on labels that are not there: {', '.join(sorted(unknown))}")
    return left
