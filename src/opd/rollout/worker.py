"""Agent loops of a batch: each answer is scored and becomes rows, in the order of the data."""

import asyncio
import logging
import time
from array import array
from collections.abc import Sequence
from typing import Any, TypeGuard

import hydra
import ray
import torch
from omegaconf import DictConfig
from verl.experimental.agent_loop import agent_loop
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from opd.agent.loop import ToolDialogueLoop, shared
from opd.agent.metrics import AgentCounts
from opd.agent.settings import AGENT_LOOP, LOOP_COLUMN, SINGLE_TURN
from opd.agent.trajectories import Trajectory, num_kept
from opd.compat import quiet
from opd.compat.vllm_servers import begun_under
from opd.data.turn_ends import end_tokens, named_ends
from opd.errors import UnusableInput
from opd.evaluation.samples import Sample, further_numbers
from opd.experiment import EvalSpec
from opd.experiment.run_config import RunConfig
from opd.rewards import BUILTIN_FUNCTIONS, is_unread, worst_score
from opd.rollout.batches import TEACHER, Batch, Begun, Prompt, RolloutReport
from opd.rollout.carry import Growth
from opd.rollout.pieces import piece
from opd.rollout.reward import Scorer, reward_function
from opd.rollout.rows import Order, Row, row_of
from opd.rollout.seeds import TRAIN, VALIDATION, SeededClient
from opd.rollout.served_teacher import TeacherUnreachable, clients

logger = logging.getLogger(__name__)

quiet.mute(*quiet.IN_ROLLOUT)


class GivenAnswer:
    """A stand-in for the server's client that returns one given answer, without probabilities."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    async def generate(self, request_id: str, *, sampling_params: dict[str, Any], **_: Any) -> TokenOutput:
        """Return the answer, up to `max_tokens` of the sampling parameters."""
        return TokenOutput(token_ids=self._ids[: sampling_params.get("max_tokens")])


class RolloutWorker(agent_loop.AgentLoopWorker):
    """verl's agent-loop worker with per-request seeds, ordered rows, counted failures, and the reward function in its process."""

    def __init__(self, config: DictConfig, llm_client: LLMServerClient):
        super().__init__(config, llm_client)
        self.ours = RunConfig.of(config)
        self._scorer, self._reward_function = Scorer(config), reward_function(config)
        is_endless, generation = self.rollout_config.ignore_eos, self.model_config.generation_config
        self._ends = frozenset(() if is_endless else end_tokens(self.tokenizer, generation))
        # No engine knows these by itself.
        self._stops = sorted(self._ends - named_ends(self.tokenizer, generation))
        self._served = clients(self.ours.spec)
        self._author = self._served.get(0) if isinstance(self.ours.spec, EvalSpec) else None
        """The served teacher that an evaluation asks in the place of rollout servers."""
        self.num_finished = 0
        self._can_be_cut: list[asyncio.Task[Row | Sample]] = []
        self._prompts: dict[int, asyncio.Future[list[int]]] = {}
        self._is_cut = False
        if config.actor_rollout_ref.rollout.agent.default_agent_loop == AGENT_LOOP:
            shared(config, self.tokenizer, self.tools)  # a bad database or template ends the run here

    async def generate(self, batch: Batch) -> RolloutReport:
        """Answer every prompt, score the answers and report them; failed answers are counted and named."""
        started, self.num_finished, self._prompts = time.perf_counter(), 0, {}
        jobs = [
            (place, sample)
            for place in range(len(batch.prompts))
            for sample in (batch.given[place] if batch.given else range(batch.num_samples))
        ]
        self._report = report = RolloutReport(num_trajectories=len(jobs))
        first = sorted(jobs, key=lambda job: (int(batch.prompts[job[0]]["index"]), job[1]))
        self._kept = set(first[: num_kept(self.ours)])
        answers = [asyncio.create_task(self._trajectory(batch, *job)) for job in jobs]
        self._can_be_cut, self._is_cut = answers if batch.is_recorded else [], False
        results = await asyncio.gather(*answers, return_exceptions=True)
        for teacher in self._served.values():
            await teacher.close()
        self._can_be_cut = []
        report.fault = next((result for result in results if _ends_the_run(result)), None)
        self._collect(batch, jobs, results, report)
        report.seconds = time.perf_counter() - started
        return report

    def _collect(
        self,
        batch: Batch,
        jobs: Sequence[tuple[int, int]],
        results: Sequence[Row | Sample | BaseException],
        report: RolloutReport,
    ) -> None:
        """Report rows or samples in the order of the jobs; count and log trajectories that raised, and count cut ones."""
        has_traced = False  # one trace a batch says enough
        for (place, sample), result in zip(jobs, results, strict=True):
            if self._is_cut and isinstance(result, asyncio.CancelledError):
                report.num_cut += 1
            elif isinstance(result, BaseException):
                report.num_failed += 1
                report.first_error = report.first_error or str(result)
                index, trace = batch.prompts[place]["index"], None if has_traced else result
                logger.warning("rollout of data row %s, sample %d failed: %s", index, sample, result, exc_info=trace)
                has_traced = True
            elif isinstance(result, Sample):
                report.samples.append(result)
                report.num_reward_failed += result.failed
            else:
                report.rows.append(result)
                report.num_reward_failed += int(bool(result.info.get("failed", 0)))
                report.num_unread += result.is_scored and is_unread(self._reward_function, result.info)

    def _sampling(self, partition: str, step: int) -> dict[str, Any]:
        """Return the sampling parameters of a request.

        Training rollouts come with log-probabilities in every `rollout.logprobs_every`-th step. One request that asks makes vLLM compute
        them for its whole batch, and a decoding step takes up to three times as long.
        """
        config, every = self.config.actor_rollout_ref.rollout, self.ours.sampling.rollout.logprobs_every
        source = config.val_kwargs if partition == VALIDATION else config
        return {
            "temperature": source.temperature,
            "top_p": source.top_p,
            "top_k": source.top_k,
            "logprobs": partition == TRAIN and bool(config.calculate_log_probs) and (step - 1) % every == 0,
            **({"stop_token_ids": self._stops} if self._stops else {}),
        }

    async def _trajectory(self, batch: Batch, place: int, sample: int) -> Row | Sample:
        """Run one agent loop and score it: its row, or the sample of a recorded batch."""
        prompt = {**batch.prompts[place], "global_steps": batch.step}
        name = prompt.pop(LOOP_COLUMN, None) or self.config.actor_rollout_ref.rollout.agent.default_agent_loop
        index, sampling = int(prompt["index"]), self._sampling(batch.partition, batch.step)
        if batch.max_tokens is not None or self._author is not None:
            most = self.rollout_config.response_length
            sampling["max_tokens"] = min(batch.max_tokens or most, most)
        if batch.given:
            client: GivenAnswer | SeededClient = GivenAnswer(batch.given[place][sample])
        else:
            key = (self.ours.spec.seed, batch.partition, batch.step, index, sample)
            client = SeededClient(self._author or self.llm_client, *key)
        loop = self._agent_loop(name, client, place)
        try:
            output = await loop.run(sampling, session_id=sample, **prompt)
            if not isinstance(output, agent_loop.AgentLoopOutput) or not output.response_ids:
                raise RuntimeError(f"agent loop {name} returned no response token, or several outputs")
            if batch.prompt_ids:
                output.prompt_ids = batch.prompt_ids[place][sample]
            if output.reward_score is None and (batch.is_recorded or self._can_score(prompt)):
                await self._score(output, prompt)
                self._refuse_cut(output)
            if isinstance(loop, ToolDialogueLoop) and loop.dialogue is not None:
                self._report.agent.add(AgentCounts.of(loop.dialogue))
                if (place, sample) in self._kept:
                    partition = "train" if batch.partition == TRAIN else "validation"
                    kept = Trajectory.of(
                        loop.dialogue, output, prompt, partition=partition, sample=sample, tokenizer=self.tokenizer
                    )
                    self._report.trajectories.append(kept)
            if batch.is_recorded:
                if self._author is not None and self._author.num_events:  # 0 of an evaluation that keeps no texts
                    events = await self._author.read(output.prompt_ids, output.response_ids)
                    self._report.events.append((index, sample, events))
                return self._sample(output, prompt, sample)
            row = self._row(output, prompt, sample)
            if self._served and batch.partition == TRAIN and not batch.has_events:
                if (teacher := self._served.get(prompt.get(TEACHER, 0))) is not None:
                    row.columns |= await teacher.read(output.prompt_ids, output.response_ids)
                else:
                    row.columns |= next(iter(self._served.values())).unread
            return row
        finally:
            self.num_finished += 1

    def _can_score(self, prompt: Prompt) -> bool:
        """Return False for a prompt without the ground truth that a built-in function compares with."""
        truth = (prompt.get("reward_model") or {}).get("ground_truth")
        return truth is not None or self._reward_function not in BUILTIN_FUNCTIONS

    async def _score(self, output: agent_loop.AgentLoopOutput, prompt: Prompt) -> None:
        text = await asyncio.to_thread(self.tokenizer.decode, output.response_ids, skip_special_tokens=True)
        found = await self._scorer.score(text, prompt, output.extra_fields | {"num_turns": output.num_turns})
        output.reward_score, output.extra_fields["reward_extra_info"] = found["score"], found

    async def advance(self, slots: Sequence[Sequence[Begun]], num_tokens: int) -> list[list[Growth]]:
        """Give each slot up to so many tokens, a round of the schedule `carry`; the rows of a slot follow one another."""

        async def of_slot(slot: Sequence[Begun]) -> list[Growth]:
            grown, num_left = list[Growth](), num_tokens
            for row in slot:
                grown.append(await self._grow(row, num_left))
                num_left -= len(grown[-1].tokens)
                if not num_left or not grown[-1].is_complete:
                    break
            return grown

        return list(await asyncio.gather(*map(of_slot, slots)))

    async def _grow(self, begun: Begun, num_tokens: int) -> Growth:
        """Return a piece of a row; verl's agent loop writes the prompt of its first piece."""
        prompt, row = begun
        try:
            sampling = self._sampling(TRAIN, step=0) | {"logprobs": False}
            if self.ours.sampling.rollout.keep_prefixes and row.pieces:
                sampling |= begun_under(row.pieces[0][0])
            if not (ids := row.prompt_ids):
                ids = await self._agent_loop(SINGLE_TURN, self.llm_client).ct_build_initial_tokens(prompt["raw_prompt"])
            seed, ends = self.ours.spec.seed, self._ends
            return await piece(self.llm_client, row, ids, sampling, run_seed=seed, ends=ends, num_tokens=num_tokens)
        except Exception as error:
            if _ends_the_run(error):
                raise  # a server that is gone answers no other row either, and its node may be
            # The row is given up and counted, as one of a whole batch is.
            logger.warning("rollout of data row %s, sample %d failed: %s", row.index, row.sample, error)
            return Growth(tokens=[], version=-1, is_complete=False, error=str(error) or type(error).__name__)
        finally:
            self.num_finished += 1

    async def cut(self) -> None:
        """Give up what is not answered yet of a recorded batch; another batch is answered to its end."""
        for answer in self._can_be_cut:
            self._is_cut = answer.cancel() or self._is_cut

    async def finished(self) -> int:
        """Return the trajectories of the batch that have ended so far, well or not: what a caller may take for progress."""
        return self.num_finished

    def _agent_loop(self, name: str, client: Any, place: int | None = None) -> agent_loop.AgentLoopBase:
        """Return verl's loop of one answer; all answers to the prompt at a place share its token ids."""
        if name not in agent_loop._agent_loop_registry:
            raise KeyError(f"agent loop {name!r} is not registered; known: {sorted(agent_loop._agent_loop_registry)}")
        cls = hydra.utils.get_class(agent_loop._agent_loop_registry[name]["_target_"])
        loop: agent_loop.AgentLoopBase = cls(
            trainer_config=agent_loop.DictConfigWrap(config=self.config),
            server_manager=client,
            tokenizer=self.tokenizer,
            processor=self.processor,
            hf_model_type=self.hf_model_type,
            dataset_cls=self.dataset_cls,
            data_config=agent_loop.DictConfigWrap(self.config.data),
            tools=agent_loop.ToolListWrap(self.tools),
        )
        if place is not None and name == SINGLE_TURN:  # another loop may write several prompts
            write, known = loop.ct_build_initial_tokens, self._prompts
            loop.ct_build_initial_tokens = lambda *args, **more: (
                known.get(place) or known.setdefault(place, asyncio.ensure_future(write(*args, **more)))
            )
        return loop

    def _is_cut_off(self, output: agent_loop.AgentLoopOutput) -> bool:
        ids = output.response_ids
        return len(ids) >= self.rollout_config.response_length and int(ids[-1]) not in self._ends

    def _refuse_cut(self, output: agent_loop.AgentLoopOutput) -> None:
        """Score an answer that the limit cut off as wrong, also where a built-in function has found the right one in it."""
        if self._reward_function in BUILTIN_FUNCTIONS and self._is_cut_off(output):
            output.reward_score = worst_score(self._reward_function)
            info = output.extra_fields.get("reward_extra_info", {})
            output.extra_fields["reward_extra_info"] = info | {"score": output.reward_score, "acc": 0.0}

    @staticmethod
    def _row(output: agent_loop.AgentLoopOutput, prompt: Prompt, sample: int) -> Row:
        extra = output.extra_fields
        row = row_of(
            Order(int(prompt["index"]), sample),
            str(prompt["uid"]),
            output.prompt_ids,
            output.response_ids,
            output.response_mask,
            data_source=str(prompt.get("data_source", "unknown")),
            info=extra.get("reward_extra_info") or {},
            is_scored=output.reward_score is not None,
            num_turns=int(output.num_turns),
        )
        scores = torch.zeros(len(row.response))
        scores[-1] = float(output.reward_score or 0.0)
        row.columns["rm_scores"] = scores
        if output.response_logprobs is not None:
            row.columns["rollout_log_probs"] = torch.tensor(output.response_logprobs, dtype=torch.float32)
        return row

    def _sample(self, output: agent_loop.AgentLoopOutput, prompt: Prompt, sample: int) -> Sample:
        """Return an evaluation's record of one answer."""
        info = output.extra_fields.get("reward_extra_info", {})
        score = float(output.reward_score or 0.0)
        return Sample(
            run_id=self.ours.run.run_id,
            step=int(prompt["global_steps"]),
            data_source=str(prompt["data_source"]),
            problem_index=int(prompt["index"]),
            sample_index=sample,
            prompt=self.tokenizer.decode(output.prompt_ids),
            response=self.tokenizer.decode(output.response_ids, skip_special_tokens=True),
            pred=str(info.get("pred", "")),
            ground_truth=str((prompt["reward_model"] or {}).get("ground_truth", "")),
            score=score,
            acc=float(info.get("acc", score > 0)),
            failed=bool(info.get("failed", False)),
            response_ids=array("i", output.response_ids),
            num_tokens=len(output.response_ids),
            truncated=self._is_cut_off(output),
            numbers=further_numbers(info),
        )


def _ends_the_run(error: object) -> TypeGuard[Exception]:
    """Return True if a server or vLLM's engine in it is gone, or if a served teacher does not read."""
    if isinstance(error, ray.exceptions.RayTaskError):
        return type(error.cause).__name__ == "EngineDeadError"  # of a module that only the server imports
    return isinstance(error, ray.exceptions.RayActorError | TeacherUnreachable | UnusableInput)
