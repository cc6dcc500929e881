"""/v1/embeddings, /pooling, /classify, /score and /rerank on the wire: OpenAI's, vLLM's, Cohere's and Jina's shapes."""

import builtins
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, RootModel, Tag

from ..config import MAX_PROMPTS
from .completions import BY_KIND, TokenIds
from .generation import INT32
from .model import BodyModel, WireModel
from .usage import PoolingUsage, optional

EncodingFormat = Literal["float", "base64"]
CohereType = Literal["float", "base64", "binary", "ubinary"]
PoolingTask = Literal["embed", "classify", "token_embed"]


FilledText = Annotated[str, Field(min_length=1)]  # no model has a vector for an empty text
FilledTexts = Annotated[list[FilledText], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
TextsOrIds = Annotated[
    Annotated[FilledText, Tag("a text")]
    | Annotated[FilledTexts, Tag("list of texts")]
    | Annotated[TokenIds, Tag("token ids")]
    | Annotated[list[TokenIds], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS), Tag("lists of ids")],
    BY_KIND,
]


class PoolingBody(BodyModel):
    """Fields of every request that encodes texts. Unknown fields are harmless here: none changes a row."""

    model: str | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1, le=INT32)
    truncation_side: Literal["left", "right"] | None = None
    priority: int | None = Field(None, ge=-INT32, le=INT32)
    user: str | None = None


class InputBody(PoolingBody):
    """A body with texts, or token ids, in `input`."""

    input: TextsOrIds
    prompt_name: str | None = None  # one of the model's own prompts


class EmbeddingRequest(InputBody):
    encoding_format: EncodingFormat | None = None
    dimensions: int | None = Field(None, ge=1, le=INT32)
    normalize: bool | None = None
    task: None = None  # Jina's, for which no model has adapters here


class ClassifyRequest(InputBody):
    use_activation: bool | None = None
    activation: bool | None = None  # vLLM's earlier name


class TextPoolingRequest(EmbeddingRequest):
    task: PoolingTask | None = None  # type: ignore[assignment]  # vLLM's, not Jina's
    use_activation: bool | None = None
    activation: bool | None = None


def _kind_of_text(value: Any) -> str:
    return "a text" if isinstance(value, str) else "list of texts"


Texts = Annotated[
    Annotated[FilledText, Tag("a text")] | Annotated[FilledTexts, Tag("list of texts")], Discriminator(_kind_of_text)
]


class ScoreRequest(PoolingBody):
    """Pairs: each text of `text_2` with the one text of `text_1`, or with the text at the same place."""

    text_1: Texts
    text_2: Texts


class Document(BodyModel):
    text: FilledText


def _kind_of_document(value: Any) -> str:
    return "a text" if isinstance(value, str) else "a document"


AnyDocument = Annotated[
    Annotated[FilledText, Tag("a text")] | Annotated[Document, Tag("a document")], Discriminator(_kind_of_document)
]


class RerankRequest(PoolingBody):
    """Jina's and Cohere's `documents`, or the `texts` of Hugging Face's TEI."""

    query: FilledText
    documents: Annotated[list[AnyDocument], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)] | None = None
    texts: FilledTexts | None = None
    return_text: bool | None = None
    top_n: int | None = Field(None, ge=1, le=INT32)
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = Field(None, ge=1, le=INT32)


class CohereEmbedRequest(BodyModel):
    """Cohere's second version of embeddings."""

    model: str | None = None
    texts: FilledTexts
    input_type: str | None = Field(None, max_length=80)
    embedding_types: Annotated[list[CohereType], Field(min_length=1)] | None = None
    output_dimension: int | None = Field(None, ge=1, le=INT32)
    max_tokens: int | None = Field(None, ge=1, le=INT32)
    truncate: Literal["NONE", "START", "END"] | None = None
    priority: int | None = Field(None, ge=-INT32, le=INT32)


class EmbeddingItem(WireModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(WireModel):
    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: PoolingUsage


class PoolingItem(WireModel):
    object: Literal["pooling"] = "pooling"
    index: int
    data: list[float] | list[list[float]] | str


class ClassifyItem(WireModel):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class ScoreItem(WireModel):
    object: Literal["score"] = "score"
    index: int
    score: float


class RowList(WireModel):
    """vLLM's list of results."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    usage: PoolingUsage


class PoolingList(RowList):
    data: list[PoolingItem]


class ClassifyList(RowList):
    data: list[ClassifyItem]


class ScoreList(RowList):
    data: list[ScoreItem]


class TeiItem(WireModel):
    """One text in TEI's answer."""

    index: int
    score: float
    text: str | None = optional()


class TeiAnswer(RootModel[list[TeiItem]]):
    pass


class RerankItem(WireModel):
    index: int
    relevance_score: float
    document: Document | None = optional()


class ApiVersion(WireModel):
    version: Literal["1", "2"]


class BilledUnits(WireModel):
    search_units: int = 1


class RerankMeta(WireModel):
    """Cohere's `meta`."""

    api_version: ApiVersion
    billed_units: BilledUnits = BilledUnits.model_construct()  # nothing is built for it yet


class InputUnits(WireModel):
    input_tokens: int
    image_tokens: int = 0


class CohereEmbedMeta(WireModel):
    api_version: ApiVersion
    billed_units: InputUnits


class CohereEmbeddings(WireModel):
    """Rows by type; binary rows have eight bits in a byte, the first one highest."""

    float: list[list[builtins.float]] | None = optional()
    base64: list[str] | None = optional()
    binary: list[list[int]] | None = optional()
    ubinary: list[list[int]] | None = optional()


class CohereEmbedAnswer(WireModel):
    id: str
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"
    embeddings: CohereEmbeddings
    texts: list[str]
    meta: CohereEmbedMeta


class RerankAnswer(WireModel):
    """Answer with the fields of both Jina's and Cohere's."""

    id: str
    model: str
    results: list[RerankItem]
    usage: PoolingUsage
    meta: RerankMeta
