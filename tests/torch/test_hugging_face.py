# SPDX-License-Identifier: Apache-2.0
"""Models of transformers, with padding masks: run at once, with the values of the plain model."""

import copy
import itertools

import pytest
import torch
from tests.torch.small import N_RECORDS, digest_of, plan_of, train, trainer_of
from tests.torch.test_batches import Plain
from torch.nn import functional

from pufferslice.learning import FlatClipping, Poisson
from pufferslice.torch.layers import Pass
from pufferslice.torch.layout import layout_of
from pufferslice.torch.per_example import PerExample
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


def own_loss(outputs, _item):
    return outputs.loss


def engine_of(model, loss_fn=own_loss):
    layout = layout_of(model, FlatClipping(norm=1.0))
    return PerExample(model, loss_fn, layout), layout


def of_engine(model, items):
    """The same, all at once."""
    engine, layout = engine_of(model)
    method = engine.method_for(items)
    assert str(method) == "all examples of a block at once"
    losses, found = engine.contributions(items, method, 0)
    return losses, torch.cat([found[i].dense() for i in range(len(layout.parameters))], 1)


IN_FULL = ("BertForSequenceClassification", "GPT2LMHeadModel", "MistralForCausalLM")
"""One of each way to build a mask: of both sides, of what came before, and of a window."""

CASES = [
    *itertools.product(IN_FULL, ["eager", "sdpa"], ["right", "left"]),
    *(
        (name, *case)
        for name in MODELS
        if name not in IN_FULL
        for case in (("eager", "left"), ("sdpa", "right"))
    ),
    ("GPT2ForSequenceClassification", "eager", "no mask"),
]


@pytest.mark.parametrize(("name", "attention", "padding"), CASES)
def test_losses_and_gradients_are_those_of_the_plain_model_on_each_example(
    name, attention, padding
):
    model, items = model_of(name, attention), items_of(name, padding=padding)
    if padding == "no mask":
        del items["attention_mask"]
    losses, gradients = of_engine(model, items)
    expected_losses, expected = of_singles(model, items)
    assert torch.allclose(losses, expected_losses, atol=1e-5)
    assert torch.allclose(gradients, expected, atol=1e-5)
    assert gradients.norm(dim=1).gt(1e-3).any()


def test_the_users_model_is_as_it_was():
    name = "BertForSequenceClassification"
    model = model_of(name, "sdpa")
    attributes, settings = set(vars(model)), copy.deepcopy(vars(model.config))
    of_engine(model, items_of(name))
    assert set(vars(model)) == attributes
    assert vars(model.config) == settings
    whole = torch.ones(1, LENGTH, dtype=torch.bool)
    embedded = torch.zeros(1, LENGTH, WIDTH)
    build = transformers.masking_utils.create_bidirectional_mask
    assert build(model.config, embedded, whole) is None
    registry = transformers.AttentionMaskInterface
    before = [registry()[name] for name in ("eager", "sdpa")]
    replica = Replica(Pass(lambda tensor: tensor)).of(model, "model")
    assert build(replica.config, embedded, whole).shape == (1, 1, LENGTH, LENGTH)
    # functions that build masks are registered once
    assert [registry()[name] for name in ("eager", "sdpa")] == before


def loss_of_classes(outputs, item):
    return functional.cross_entropy(outputs.logits, item["labels"])


def loss_of_next_tokens(outputs, item):
    """As the model's own, but zero for an example without any token to predict."""
    following = item["labels"][:, 1:]
    losses = functional.cross_entropy(outputs.logits[:, :-1].mT, following, reduction="none")
    return losses.sum() / (following != -100).sum().clamp_min(1)


def loss_of(name):
    return loss_of_next_tokens if "LM" in name else loss_of_classes


def lora(name):
    peft = pytest.importorskip("peft")
    kind = "CAUSAL_LM" if "LM" in name else "SEQ_CLS"
    settings = peft.LoraConfig(task_type=kind, r=2, fan_in_fan_out="GPT2" in name)
    return peft.get_peft_model(model_of(name), settings).eval()


@pytest.mark.parametrize(
    "name", ["BertForSequenceClassification", "GPT2ForSequenceClassification", "GPT2LMHeadModel"]
)
def test_adapters_of_lora_are_tapped_and_nothing_else_is_trained(name):
    engine, layout = engine_of(lora(name), loss_of(name))
    assert all("lora_" in one or "classifier" in one or "score" in one for one in layout.names)
    method = engine.method_for(items_of(name))
    assert str(method) == "all examples of a block at once"
    tapped = {id(p) for layer in method.tapped for p in layer.parameters()}
    assert {id(p) for p in layout.parameters} <= tapped


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_a_run_trains_with_masks_and_dropout_on_the_quick_way(name, attention):
    items = items_of(name)
    rows = [{key: value[i] for key, value in items.items()} for i in range(len(LENGTHS))]
    model = model_of(name, attention).train()
    before = digest_of(model)
    plan = plan_of(2, Poisson(n_records=N_RECORDS, rate=0.2))
    trainer, _ = trainer_of(plan, model=model, loss_fn=loss_of(name))
    reports = train(trainer, Plain(rows * (N_RECORDS // len(rows))))
    assert [report.n_non_finite for report in reports] == [0, 0]
    assert trainer.gradient_method == "all examples of a block at once"
    assert digest_of(model) != before
