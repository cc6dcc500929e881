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
class RowFunction:
    """A function of all values of the row."""

    function: HeadActivation


@dataclass(frozen=True, slots=True)
class Normalize:
    """Division of the row by its length."""


HeadStep = Dense | HeadLayerNorm | RowFunction | Normalize


@dataclass(frozen=True, slots=True)
class Head:
    """Pooled rows one after the other, then steps. A head with `labels` classifies, otherwise it embeds."""

    pooling: tuple[PoolingMode, ...]
    steps: tuple[HeadStep, ...] = ()
    labels: tuple[str, ...] = ()
    is_late: bool = False  # the first step is of each token's state, before pooling

    @property
    def is_classifier(self) -> bool:
        return bool(self.labels)

    @property
    def is_normalized(self) -> bool:
        """True when its rows have length 1."""
        return bool(self.steps) and isinstance(self.steps[-1], Normalize)


LIKE_BERT = {"Bert": "bert", "Ernie": "ernie", "NomicBert": "nomic_bert", "Gte": "gte"}  # beginnings of tensors' names
LIKE_ROBERTA = (
    "Roberta",
    "XLMRoberta",
    "Camembert",
    "MPNet",
    "RobertaPreLayerNorm",
    "XLMRobertaXL",
    "JinaEmbeddingsV3",
)
_ROBERTA = (Dense("classifier.dense", "tanh"), Dense("classifier.out_proj"))
_LAST_TOKEN = Head(("lasttoken",), (Dense("score", has_bias=False),))

# Heads by the name of the architecture; decoders have the last one. Source: the forward of each class in transformers
# (models/<type>/modeling_<type>.py).
CLASSIFIERS: dict[str, Head] = {
    **{
        f"{name}ForSequenceClassification": Head(
            ("cls",), (Dense(f"{prefix}.pooler.dense", "tanh"), Dense("classifier"))
        )
        for name, prefix in LIKE_BERT.items()
    },
    "AlbertForSequenceClassification": Head(("cls",), (Dense("albert.pooler", "tanh"), Dense("classifier"))),
    "DebertaV2ForSequenceClassification": Head(("cls",), (Dense("pooler.dense", "gelu"), Dense("classifier"))),
    "ElectraForSequenceClassification": Head(
        ("cls",), (Dense("classifier.dense", "gelu"), Dense("classifier.out_proj"))
    ),
    "EuroBertForSequenceClassification": Head(("mean",), (Dense("dense", "gelu"), Dense("classifier")), is_late=True),
    "DistilBertForSequenceClassification": Head(("cls",), (Dense("pre_classifier", "relu"), Dense("classifier"))),
    "ModernBertForSequenceClassification": Head(
        ("cls",), (Dense("head.dense", "gelu"), HeadLayerNorm("head.norm", 1e-5, has_bias=False), Dense("classifier"))
    ),
    **dict.fromkeys(
        (f"{name}ForSequenceClassification" for name in LIKE_ROBERTA),
        Head(("cls",), _ROBERTA),
    ),
}
CLASSIFIES = "ForSequenceClassification"


class _LabelKeys(msgspec.Struct, kw_only=True):
    id2label: dict[str, str] | None = None
    num_labels: int | None = None
    problem_type: str | None = None
    sbert_ce_default_activation_function: str | None = None
    sentence_transformers: dict[str, Any] | None = None
    classifier_pooling: Literal["cls", "bos", "mean", "late"] | None = None  # keys of ModernBERT and EuroBERT
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
    labels = _labels(keys)
    head = CLASSIFIERS.get(architecture, _LAST_TOKEN)
    if architecture.startswith("ModernBert"):
        dense, norm, last = head.steps
        assert isinstance(dense, Dense)
        assert isinstance(norm, HeadLayerNorm)
        norm = replace(norm, eps=keys.norm_eps, has_bias=keys.norm_bias)
        head = replace(head, steps=(replace(dense, has_bias=keys.classifier_bias), norm, last))
    if keys.classifier_pooling is not None and architecture.startswith(("ModernBert", "EuroBert")):
        pooling: PoolingMode = "cls" if keys.classifier_pooling in ("cls", "bos") else "mean"
        head = replace(head, pooling=(pooling,), is_late=keys.classifier_pooling == "late")
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
