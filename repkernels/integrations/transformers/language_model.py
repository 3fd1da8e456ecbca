"""A causal language model whose layers are this library's: generation, continuous batching, the loss."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from repkernels.integrations.transformers import generation
from repkernels.integrations.transformers.generation import Seeds
from repkernels.integrations.transformers.manager import Manager
from repkernels.integrations.transformers.variants import Variant
from repkernels.nn import functional
from repkernels.ops.arithmetic import div

# Its name since transformers 5.20, and before.
_CACHE = "cache" if "cache" in {field.name for field in fields(CausalLMOutputWithPast)} else "past_key_values"


class LanguageModel(Variant):
    """What `enable` puts above a model such as LlamaForCausalLM."""

    def generate(self: Any, *args: Any, seed: Seeds = None, **kwargs: Any) -> Any:
        """transformers' `generate`, greedy or sampling, from streams of random numbers that belong to a prompt.

        seed: of all prompts, or one for each. None: drawn from `repkernels.random` when sampling. Answer n of
        `num_return_sequences` takes the n-th stream of its prompt's seed. torch's generators stay as they are.
        A prompt's tokens and logits do not depend on the others nor on padding on the left.
        Raises NotImplementedError for beam search and other modes, and for processors that are not reproducible.
        """
        if kwargs.get("custom_generate") is not None:
            raise NotImplementedError("custom_generate: not supported by an enabled model; call disable(model) first")
        with generation.seeded(seed):
            return super().generate(*args, **kwargs)  # type: ignore[misc]

    def _sample(
        self: Any, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **rest: Any
    ) -> Any:
        processors, config = generation.choosing(
            input_ids, logits_processor, generation_config, rest.get("attention_mask")
        )
        return super()._sample(input_ids, processors, stopping_criteria, config, **rest)  # type: ignore[misc]

    def _beam_search(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("num_beams: beam search is not supported by an enabled model; use num_beams=1")

    def _assisted_decoding(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("assisted generation is not supported by an enabled model")

    def _valid_auto_compile_criteria(self: Any, *args: Any, **kwargs: Any) -> bool:
        """Compiled glue rounds in other places."""
        return False

    @torch.no_grad()
    def init_continuous_batching(
        self: Any,
        generation_config: GenerationConfig | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        workload_hints: Any = None,
    ) -> Manager:
        """As transformers', with a `Manager`; one that was kept for the next session is taken again."""
        kept = getattr(self, "_cached_continuous_batching_manager", None)
        if isinstance(kept, Manager):
            kept.switch_to_cb_friendly_attn(self)
            return kept
        config = self.generation_config if generation_config is None else generation_config
        if config is None:
            raise ValueError("generation_config: give one, the model has none")
        if continuous_batching_config is None:
            continuous_batching_config = ContinuousBatchingConfig()
        return Manager(self, config, continuous_batching_config, workload_hints)

    def generate_batch(
        self: Any, inputs: Sequence[Sequence[int]], *args: Any, seed: Seeds = None, **kwargs: Any
    ) -> Any:
        """transformers' `generate_batch`: {request id: output}. seed: as in `generate`.

        A request that cannot be served has `output.error`. Raises ValueError for an empty prompt.
        """
        for i, prompt in enumerate(inputs):
            if len(prompt) == 0:
                raise ValueError(f"inputs: prompt {i} is empty")
        with generation.seeded(seed):
            generation.seeds_for(len(inputs))
            return super().generate_batch(inputs, *args, **kwargs)  # type: ignore[misc]

    @property
    def loss_function(self: Any) -> Any:
        return causal_loss

    @loss_function.setter
    def loss_function(self: Any, value: Any) -> None:
        raise AttributeError("loss_function: an enabled model has this library's; call disable(model) first")


class SoftCappedLanguageModel(LanguageModel):
    """Gemma's: logits are softly capped, which transformers computes with the device's tanh."""

    def forward(
        self: Any,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = True,
        **kwargs: Any,
    ) -> Any:
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept, :])
        if self.config.final_logit_softcapping is not None:
            logits = functional.softcap(logits, self.config.final_logit_softcapping)
        loss = None if labels is None else causal_loss(logits, labels, self.vocab_size, **kwargs)
        made = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{_CACHE: outputs.get(_CACHE)},
        )
        return made if return_dict is not False else made.to_tuple()


def causal_loss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """transformers' ForCausalLMLoss by this library's cross_entropy, in fp32."""
    if shift_labels is None:
        labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)
        shift_labels = labels[..., 1:].contiguous()
    reduction = "mean" if num_items_in_batch is None else "sum"
    flat, target = logits.float().view(-1, vocab_size), shift_labels.view(-1).to(logits.device)
    loss = functional.cross_entropy(flat, target, ignore_index=ignore_index, reduction=reduction)
    if num_items_in_batch is None:
        return loss
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(loss)
    return div(loss, num_items_in_batch)
