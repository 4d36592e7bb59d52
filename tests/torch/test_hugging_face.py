# SPDX-License-Identifier: Apache-2.0
"""Models of transformers, with padding masks: run at once, with the values of the plain model."""

import copy

import pytest
import torch
from tests.torch.small import N_RECORDS, digest_of, plan_of
from torch import nn
from torch.func import grad_and_value, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import TensorDataset

from pufferslice.sgd import FlatClipping, Poisson
from pufferslice.torch import Trainer
from pufferslice.torch.isolation import Isolation
from pufferslice.torch.layout import layout_of
from pufferslice.torch.replica import Replica

transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTH, WIDTH, N_CLASSES, PAD = 30, 7, 8, 3, 0
LENGTHS = (LENGTH, 4, 2, LENGTH - 1)
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "num_labels": N_CLASSES,
    "pad_token_id": PAD,
}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": LENGTH,
    "num_labels": N_CLASSES,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = BERT | {"num_key_value_heads": 1, "bos_token_id": 1, "eos_token_id": 2}
DISTIL = {
    "vocab_size": VOCABULARY,
    "dim": WIDTH,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 12,
    "num_labels": N_CLASSES,
}
MODELS = {
    "BertForSequenceClassification": ("BertConfig", BERT),
    "BertLMHeadModel": ("BertConfig", BERT | {"is_decoder": True}),
    "DistilBertForSequenceClassification": ("DistilBertConfig", DISTIL),
    "RobertaForSequenceClassification": ("RobertaConfig", BERT),
    "GPT2LMHeadModel": ("GPT2Config", GPT2),
    "GPT2ForSequenceClassification": ("GPT2Config", GPT2),
    "LlamaForCausalLM": ("LlamaConfig", LLAMA),
    "MistralForCausalLM": ("MistralConfig", LLAMA | {"sliding_window": 3}),
    "T5ForConditionalGeneration": (
        "T5Config",
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "d_ff": 12,
            "num_layers": 1,
            "num_heads": 2,
            "d_kv": 4,
            "decoder_start_token_id": PAD,
        },
    ),
}
OF_TOKENS = ("LM", "Generation")


def model_of(name, attention="eager"):
    config, settings = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, config)(**settings, attn_implementation=attention)
    return getattr(transformers, name)(made).eval()


def items_of(name, *, padding="right"):
    """What a tokenizer and a data collator give, for a whole batch."""
    generator = torch.Generator().manual_seed(1)
    shape = (len(LENGTHS), LENGTH)
    mask = (torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]).long()
    mask = mask.flip(1) if padding == "left" else mask
    ids = torch.randint(3, VOCABULARY, shape, generator=generator) * mask + PAD * (1 - mask)
    labels = torch.randint(0, N_CLASSES, shape, generator=generator).where(mask == 1, -100)
    if not any(part in name for part in OF_TOKENS):
        labels = labels.clamp_min(0)[:, -1]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def of_singles(model, items):
    """Losses and gradients of the plain model on batches of one."""
    losses, rows = [], []
    for i in range(len(LENGTHS)):
        loss = model(**{key: value[i : i + 1] for key, value in items.items()}).loss
        gradients = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
        rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        losses.append(loss.detach())
    return torch.stack(losses), torch.stack(rows)


def of_replicas(model, items):
    """The same by one `vmap` over replicas."""
    parameters = list(model.parameters())

    def loss_of_one(given, item):
        stands_for = {id(p): value for p, value in zip(parameters, given, strict=True)}
        replica = Replica(lambda tensor: stands_for.get(id(tensor), tensor)).of(model, "model")
        return replica(**{key: value[None] for key, value in item.items()}).loss

    mapped = vmap(grad_and_value(loss_of_one), in_dims=(None, 0), randomness="different")
    with sdpa_kernel(SDPBackend.MATH):
        gradients, losses = mapped([p.detach() for p in parameters], items)
    return losses, torch.cat([gradient.flatten(1) for gradient in gradients], 1)


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_those_of_the_plain_model_on_each_example(
    name, attention, padding
):
    model, items = model_of(name, attention), items_of(name, padding=padding)
    losses, gradients = of_replicas(model, items)
    expected_losses, expected = of_singles(model, items)
    assert torch.allclose(losses, expected_losses, atol=1e-5)
    assert torch.allclose(gradients, expected, atol=1e-5)
    assert gradients.norm(dim=1).gt(1e-3).any()


def test_without_a_mask_padding_is_not_looked_for():
    name = "GPT2ForSequenceClassification"
    model, items = model_of(name), items_of(name)
    del items["attention_mask"]
    losses, gradients = of_replicas(model, items)
    expected_losses, expected = of_singles(model, items)
    assert torch.allclose(losses, expected_losses, atol=1e-5)
    assert torch.allclose(gradients, expected, atol=1e-5)


def test_the_users_model_is_as_it_was():
    name = "BertForSequenceClassification"
    model = model_of(name, "sdpa")
    attributes, settings = set(vars(model)), copy.deepcopy(vars(model.config))
    of_replicas(model, items_of(name))
    assert set(vars(model)) == attributes
    assert vars(model.config) == settings
    whole = torch.ones(1, LENGTH, dtype=torch.bool)
    embedded = torch.zeros(1, LENGTH, WIDTH)
    build = transformers.masking_utils.create_bidirectional_mask
    assert build(model.config, embedded, whole) is None
    replica = Replica(lambda tensor: tensor).of(model, "model")
    assert build(replica.config, embedded, whole).shape == (1, 1, LENGTH, LENGTH)


def test_functions_that_build_masks_are_registered_once():
    model = model_of("BertForSequenceClassification")
    registry = transformers.AttentionMaskInterface
    Replica(lambda tensor: tensor).of(model, "model")
    before = [registry()[name] for name in ("eager", "sdpa")]
    Replica(lambda tensor: tensor).of(model, "model")
    assert [registry()[name] for name in ("eager", "sdpa")] == before


class Named(nn.Module):
    """Gives positional inputs of a dataset to a model by their names."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


def loss_of_classes(logits, labels):
    return functional.cross_entropy(logits, labels, reduction="none")


def loss_of_next_tokens(logits, labels):
    following = labels[:, 1:]
    losses = functional.cross_entropy(logits[:, :-1].mT, following, reduction="none")
    return losses.sum(1) / (following != -100).sum(1).clamp_min(1)


def loss_of(name):
    return loss_of_next_tokens if "LM" in name else loss_of_classes


def examples_of(name):
    return tuple(items_of(name).values())


def lora(name):
    peft = pytest.importorskip("peft")
    kind = "CAUSAL_LM" if "LM" in name else "SEQ_CLS"
    settings = peft.LoraConfig(task_type=kind, r=2, fan_in_fan_out="GPT2" in name)
    return peft.get_peft_model(model_of(name), settings).eval()


@pytest.mark.parametrize(
    "name", ["BertForSequenceClassification", "GPT2ForSequenceClassification", "GPT2LMHeadModel"]
)
def test_adapters_of_lora_are_tapped_and_nothing_else_is_trained(name):
    model = Named(lora(name))
    layout = layout_of(model, FlatClipping(norm=1.0))
    assert all("lora_" in one or "classifier" in one or "score" in one for one in layout.names)
    isolation = Isolation(model, loss_of(name), layout)
    treatment = isolation.treatment(examples_of(name))
    assert treatment.way == "per_example"
    assert not treatment.is_slow
    tapped = {id(p) for layer in treatment.tapped for p in layer.parameters()}
    assert {id(p) for p in layout.parameters} <= tapped


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_a_run_trains_with_masks_and_dropout_on_the_quick_way(name):
    torch.manual_seed(0)
    n_copies = N_RECORDS // len(LENGTHS)
    dataset = TensorDataset(
        *(one.repeat(n_copies, *[1] * (one.dim() - 1)) for one in examples_of(name))
    )
    model = Named(model_of(name)).train()
    before = digest_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = plan_of(2, Poisson(n_records=N_RECORDS, rate=0.2))
    trainer = Trainer(model, loss_of(name), optimizer, plan)
    for batch in trainer.batches(dataset):
        assert trainer.step(batch).n_non_finite == 0
    assert trainer.gradient_method == "all examples of a block at once"
    assert digest_of(model) != before
