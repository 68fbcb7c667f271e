"""Forecasting the speed of GPU programs as an environment of ``verifiers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_forecasts.taskset import KernelForecastsTaskset

if TYPE_CHECKING:
    import verifiers.v1 as vf

__all__ = ["KernelForecastsTaskset", "load_environment"]


def load_environment(
    split: str = "train",
    reward: str = "crps",
    prompt: str = "json",
    archive: str | None = None,
    **more: Any,
) -> vf.Env:
    """The environment, ready to be run: one question, one answer, one reward.

    Args:
        split: ``train``, or with ``held_out=True`` a split that is there to be forecast.
        reward: ``correctness``, ``brier``, ``crps`` or ``log``.
        prompt: form of the answer that is asked for: ``json`` or ``text``.
        archive: directory of the archive; ``gpu-forecasters/kernels`` here when not given.
        more: other fields of the taskset's configuration.
    """
    import verifiers.v1 as vf

    from kernel_forecasts.taskset import ForecastTaskConfig, KernelForecastsConfig

    taskset = KernelForecastsConfig(
        id="kernel-forecasts",
        split=split,
        answer=prompt,
        archive=archive,
        task=ForecastTaskConfig(reward=reward),
        **more,
    )
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    return vf.load_environment(
        vf.SingleAgentEnvConfig(taskset=taskset, agent=vf.AgentConfig.model_validate(agent))
    )
