"""The check of queries finds what it is for."""

from __future__ import annotations

import pytest

from tests.deploy.promql import BadQuery, matchers, result_labels

METRICS = {
    "requests_total": frozenset({"job", "route", "outcome"}),
    "wait_bucket": frozenset({"job", "route", "le"}),
    "target": frozenset[str](),
}


@pytest.mark.parametrize(
    ("expression", "labels"),
    [
        ("requests_total", {"job", "route", "outcome"}),
        ('sum by (job) (rate(requests_total{outcome="ok"}[5m]))', {"job"}),
        ("sum without (route) (requests_total)", {"job", "outcome"}),
        ("sum(requests_total) / 2", set()),
        ("histogram_quantile(0.9, sum by (route, le) (rate(wait_bucket[5m])))", {"route"}),
        ("wait_bucket > on () group_left () target", {"job", "route", "le"}),
    ],
)
def test_labels_of_a_result(expression: str, labels: set[str]) -> None:
    """The labels are those that Prometheus would give."""
    assert result_labels(expression, METRICS) == labels


@pytest.mark.parametrize(
    "expression",
    [
        "request_total",
        'requests_total{rout="cpu"}',
        "sum by (model) (requests_total)",
        "sum by (job) (requests_total) / sum by (route) (requests_total)",
        "histogram_quantile(0.9, sum by (route) (wait_bucket))",
        "requests_total / on (model) wait_bucket",
        "sum(rate(requests_total[5m]) / sum by (model) (wait_bucket))",
    ],
)
def test_what_does_not_exist_is_found(expression: str) -> None:
    """A mistyped metric, a missing label in a selector, an aggregation or a join."""
    with pytest.raises(BadQuery):
        result_labels(expression, METRICS)


def test_a_wrong_syntax_is_an_error() -> None:
    """What Prometheus would not parse is not accepted either."""
    with pytest.raises(ValueError, match=r"\S"):
        result_labels("sum by (job rate(requests_total[5m])", METRICS)


def test_matchers_are_listed() -> None:
    """Only exact ones: a pattern may match what is not there yet."""
    assert matchers('sum(requests_total{route="cpu",outcome=~"a|b"}) / target') == [("requests_total", "route", "cpu")]
