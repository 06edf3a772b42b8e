"""BatchNorm moments pooled by looking at every activation."""

from __future__ import annotations


def mean_and_variance(numbers):
    """Population mean and variance of a list."""
    mean = sum(numbers) / len(numbers)
    return mean, sum((x - mean) ** 2 for x in numbers) / len(numbers)


def pooled(groups):
    """Mean and variance of all numbers of all groups together."""
    return mean_and_variance([x for group in groups for x in group])
