"""Silence for lines of verl 0.9.1, vLLM 0.24, Ray 2.60 and torch 2.11 that say nothing of the run."""

import importlib
import logging

# Modules whose `print` announces a class that was found, a model that was wrapped, or a step that did nothing.
IN_DRIVER = ("verl.utils.config", "verl.single_controller.ray.base", "verl.workers.rollout.llm_server")
IN_ROLLOUT = ("verl.utils.dataset.rl_dataset",)
IN_RANK = (
    "verl.models.transformers.monkey_patch",
    "verl.utils.distributed",
    "verl.utils.model",
    "verl.utils.profiler.performance",
    "verl.workers.engine.fsdp.transformer_impl",
)
LOGGERS = {
    "model_hosting_container_standards": logging.ERROR,  # vLLM's server has no handlers of SageMaker's
    "ray._private.authentication.authentication_token_setup": logging.ERROR,  # the token is on by default
    "ray._private.worker": logging.ERROR,  # a local Ray was started; an answer was waited for
    "torch.fx._symbolic_trace": logging.ERROR,  # torch asks itself by a name that will mean more
    "verl.utils.tokenizer.continuous_token_wiring": logging.ERROR,  # for each answer: verl's default builder is used
    "vllm.config.model": logging.ERROR,  # verl has given the sampling parameters
    "vllm.entrypoints.serve.lora.api_router": logging.ERROR,  # verl loads adapters while it serves
    "vllm.utils.system_utils": logging.ERROR,  # how the engine's process starts
    "vllm.v1.engine.input_processor": logging.ERROR,  # verl sends token ids as prompts
}


def mute(*modules: str) -> None:
    """Have these modules print nothing in this process, and raise the level of `LOGGERS`."""
    for name in modules:
        vars(importlib.import_module(name)).update(print=_nothing, pprint=_nothing)
    for name, level in LOGGERS.items():
        logging.getLogger(name).setLevel(level)


def _nothing(*_: object, **__: object) -> None:
    pass
