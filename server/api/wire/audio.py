"""/v1/audio/transcriptions and /v1/audio/translations on the wire, in OpenAI's shapes."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .generation import INT64, GenerationRequest
from .model import WireModel
from .usage import optional

AudioFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]


class AudioForm(WireModel):
    """Fields of the form beside its file. Each comes as text."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = Field(None, max_length=4096)
    language: str | None = Field(None, max_length=16)
    prompt: str | None = Field(None, max_length=2**16)
    response_format: AudioFormat = "json"
    temperature: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(None, ge=-INT64 - 1, le=INT64)
    stream: bool = False
    timestamp_granularities: Annotated[list[Literal["word", "segment"]], Field(max_length=2)] = Field([])


class SpeechRequest(GenerationRequest):
    """Sampling of one window of sound."""

    logprobs: int | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class SoundUsage(WireModel):
    """Measure of a request: the duration of its sound."""

    type: Literal["duration"] = "duration"
    seconds: int  # rounded up


class TranscriptTokenDetails(WireModel):
    audio_tokens: int  # positions of the encoder
    text_tokens: int


class TranscriptTokens(WireModel):
    type: Literal["tokens"] = "tokens"
    input_tokens: int
    input_token_details: TranscriptTokenDetails
    output_tokens: int
    total_tokens: int


class Transcript(WireModel):
    text: str
    usage: SoundUsage


class TranscriptSegment(WireModel):
    id: int
    seek: int  # where its window begins, in hundredths of a second
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float  # of the tokens of its window
    compression_ratio: float  # of its text by zlib
    no_speech_prob: float  # of its window


class TranscriptWord(WireModel):
    word: str
    start: float
    end: float


class VerboseTranscript(WireModel):
    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    words: list[TranscriptWord] | None = optional()
    segments: list[TranscriptSegment] | None = optional()
    usage: SoundUsage


class TranscriptDelta(WireModel):
    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str


class TranscriptDone(WireModel):
    type: Literal["transcript.text.done"] = "transcript.text.done"
    text: str
    usage: TranscriptTokens


AudioAnswer = Transcript | VerboseTranscript
AUDIO_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "model": {"type": "string"},
        "language": {"type": "string"},
        "prompt": {"type": "string"},
        "response_format": {"enum": ["json", "text", "srt", "verbose_json", "vtt"]},
        "temperature": {"type": "number", "minimum": 0, "maximum": 1},
        "stream": {"type": "boolean"},
        "timestamp_granularities[]": {"type": "array", "maxItems": 2, "items": {"enum": ["word", "segment"]}},
    },
    "required": ["file"],
}
