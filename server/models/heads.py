"""Heads that pool the last states of a text's tokens to one row. Names and numbers only.

An embedding is a pooled row, normalized as a rule; a classification head is a pooled row that goes through one or two
layers. sentence-transformers writes the first into modules.json (server/checkpoint/sentence.py); the second follows
from the architecture's name, as in transformers' `*ForSequenceClassification`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from ..config.formats import PoolingMode
from .config_values import Epsilon, Values, read_record, refuse

HeadActivation = Literal["identity", "tanh", "gelu", "relu", "sigmoid", "softmax"]


@dataclass(frozen=True, slots=True)
class Dense:
    """activation(row @ weight.T + bias)."""

    module: str  # name in the checkpoint
    activation: HeadActivation = "identity"
    has_bias: bool = True
    folder: str = ""  # with a weights file of its own, below the model's; "" = the model's files


@dataclass(frozen=True, slots=True)
class HeadLayerNorm:
    """LayerNorm of the row."""

    module: str
    eps: float
    has_bias: bool


@dataclass(frozen=True, slots=True)
class TokenOdds:
    """Logit of the second token less that of the first, by the output layer: log odds of their softmax."""

    tokens: tuple[str, str]


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function of all values of the row."""

    function: HeadActivation


@dataclass(frozen=True, slots=True)
class Normalize:
    """Division of the row by its length."""


HeadStep = Dense | HeadLayerNorm | TokenOdds | RowFunction | Normalize


@dataclass(frozen=True, slots=True)
class Head:
    """Pooled rows one after the other, then steps. A head with `labels` classifies, otherwise it embeds."""

    pooling: tuple[PoolingMode, ...]
    steps: tuple[HeadStep, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def is_classifier(self) -> bool:
        return bool(self.labels)

    @property
    def is_normalized(self) -> bool:
        """True when its rows have length 1."""
        return bool(self.steps) and isinstance(self.steps[-1], Normalize)


def _of_first_token(dense: str, activation: HeadActivation = "tanh", last: str = "classifier") -> Head:
    return Head(("cls",), (Dense(dense, activation), Dense(last)))


LIKE_ROBERTA = ("Roberta", "XLMRoberta", "Camembert", "MPNet", "JinaEmbeddingsV3")
_LAST_TOKEN = Head(("lasttoken",), (Dense("score", has_bias=False),))

# Heads by the name of the architecture; decoders have the last one. Source: the forward of each class in transformers
# (models/<type>/modeling_<type>.py).
CLASSIFIERS: dict[str, Head] = {
    "BertForSequenceClassification": _of_first_token("bert.pooler.dense"),
    "AlbertForSequenceClassification": _of_first_token("albert.pooler"),
    "ErnieForSequenceClassification": _of_first_token("ernie.pooler.dense"),
    "NomicBertForSequenceClassification": _of_first_token("nomic_bert.pooler.dense"),
    "GteForSequenceClassification": _of_first_token("gte.pooler.dense"),
    "DebertaV2ForSequenceClassification": _of_first_token("pooler.dense", "gelu"),
    "DistilBertForSequenceClassification": _of_first_token("pre_classifier", "relu"),
    "ElectraForSequenceClassification": _of_first_token("classifier.dense", "gelu", "classifier.out_proj"),
    "ModernBertForSequenceClassification": Head(
        ("cls",), (Dense("head.dense", "gelu"), HeadLayerNorm("head.norm", 1e-5, has_bias=False), Dense("classifier"))
    ),
    **dict.fromkeys(
        (f"{name}ForSequenceClassification" for name in LIKE_ROBERTA),
        _of_first_token("classifier.dense", last="classifier.out_proj"),
    ),
}
CLASSIFIES = "ForSequenceClassification"


@dataclass(frozen=True, slots=True)
class PairFrame:
    """Prompt of a decoder that ranks: `text` has the places of both texts, and loses its end where it is too long."""

    before: str
    text: str
    after: str


# Source: the model card of Qwen/Qwen3-Reranker-0.6B.
QWEN3_RERANKER = PairFrame(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {}\n<Document>: {}",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)


class _LabelKeys(msgspec.Struct, kw_only=True):
    classifier_from_token: tuple[str, str] | None = None  # vLLM's key: tokens for no and for yes
    id2label: dict[str, str] | None = None
    num_labels: int | None = None
    problem_type: str | None = None
    sbert_ce_default_activation_function: str | None = None
    sentence_transformers: dict[str, Any] | None = None
    classifier_pooling: Literal["cls", "mean"] = "cls"  # ModernBERT's keys
    classifier_bias: bool = False
    pooler_hidden_act: Literal["gelu"] = "gelu"  # DeBERTa's
    classifier_activation: Literal["gelu"] = "gelu"
    norm_bias: bool = False
    norm_eps: Epsilon = 1e-5


# Functions of a cross-encoder's logits, by the torch module that sentence-transformers names.
_MODULES: dict[str, HeadActivation] = {"Identity": "identity", "Sigmoid": "sigmoid", "Softmax": "softmax"}


def classification_head(architecture: str, values: Values) -> Head | None:
    """Return the head of a `*ForSequenceClassification`, which ends with the function that makes scores of logits.

    The function is the one that sentence-transformers has written into config.json. Without it, it is the sigmoid for
    one label and for labels that do not exclude each other, otherwise the softmax. None for other architectures.
    Raises ConfigError.
    """
    if not architecture.endswith(CLASSIFIES):
        return None
    keys = read_record(values, _LabelKeys)
    if keys.classifier_from_token is not None:
        odds = TokenOdds(keys.classifier_from_token)
        return Head(("lasttoken",), (odds, RowFunction("sigmoid")), odds.tokens[1:])
    labels = _labels(keys)
    head = CLASSIFIERS.get(architecture, _LAST_TOKEN)
    if architecture.startswith("ModernBert"):
        dense, norm, last = head.steps
        assert isinstance(dense, Dense)
        assert isinstance(norm, HeadLayerNorm)
        norm = replace(norm, eps=keys.norm_eps, has_bias=keys.norm_bias)
        head = Head((keys.classifier_pooling,), (replace(dense, has_bias=keys.classifier_bias), norm, last))
    return replace(head, steps=(*head.steps, RowFunction(_scores(keys, len(labels)))), labels=labels)


def _labels(keys: _LabelKeys) -> tuple[str, ...]:
    """Return the labels in the order of the logits; two where the file names none, as in transformers."""
    if keys.id2label is None:
        return tuple(f"LABEL_{i}" for i in range(2 if keys.num_labels is None else keys.num_labels))
    order = [str(i) for i in range(len(keys.id2label))]
    if not order or set(order) != set(keys.id2label):
        raise refuse("id2label", keys.id2label, "must have a label for each number from 0 on")
    return tuple(keys.id2label[i] for i in order)


def _scores(keys: _LabelKeys, num_labels: int) -> HeadActivation:
    stated = (keys.sentence_transformers or {}).get("activation_fn") or keys.sbert_ce_default_activation_function
    if stated is not None:
        return named_activation("activation_fn", stated, _MODULES)
    is_multi = keys.problem_type == "multi_label_classification"
    return "sigmoid" if num_labels == 1 or is_multi else "softmax"


def named_activation(key: str, path: object, known: dict[str, HeadActivation]) -> HeadActivation:
    """Return the function that a dotted path of torch names. No code is imported: ConfigError for an unknown path."""
    name = path.rpartition(".")[2] if isinstance(path, str) and path.startswith("torch.nn.") else ""
    if name not in known:
        raise refuse(key, path, f"supported are {', '.join(f'torch.nn.{each}' for each in known)}")
    return known[name]
