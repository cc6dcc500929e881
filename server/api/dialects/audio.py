"""POST /v1/audio/transcriptions and /v1/audio/translations: sound in, text out, in OpenAI's formats."""

from collections.abc import AsyncGenerator
from math import ceil

from fastapi import APIRouter, Request, Response
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from ...errors import InvalidRequest, PayloadTooLarge
from ...media.transcript import subtitles
from ..errors import as_body, unsupported
from ..http.body import content_type
from ..http.event_stream import EventStream, until_disconnect
from ..http.openapi import OF_BODIES, STREAM, errors_of
from ..http.origin import origin_of
from ..pipeline.respond import json_frame
from ..pipeline.transcription import Task, Transcription, speech_of
from ..service import Service, ServiceOf
from ..wire.audio import (
    AUDIO_FORM,
    AudioAnswer,
    AudioForm,
    SoundUsage,
    Transcript,
    TranscriptDelta,
    TranscriptDone,
    TranscriptTokenDetails,
    TranscriptTokens,
    VerboseTranscript,
)

TRANSCRIPTIONS, TRANSLATIONS = PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
MAX_FIELDS = 24
REFUSED = ("include", "known_speaker_names", "known_speaker_references", "keywords", "languages", "to_language")
RESPONSES = STREAM | errors_of(401, 408, 429, *OF_BODIES)
FORM = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": AUDIO_FORM}}}}
router = APIRouter()


@router.post(TRANSCRIPTIONS, responses=RESPONSES, openapi_extra=FORM, response_model=AudioAnswer)
async def create_transcription(request: Request, service: ServiceOf) -> Response:
    """Write down what a file of sound says."""
    return await _answer(request, service, "transcribe")


@router.post(TRANSLATIONS, responses=RESPONSES, openapi_extra=FORM, response_model=AudioAnswer)
async def create_translation(request: Request, service: ServiceOf) -> Response:
    """Write down what a file of sound says, in English."""
    return await _answer(request, service, "translate")


async def _answer(request: Request, service: Service, task: Task) -> Response:
    reader = speech_of(service)
    content_type(request, "multipart/form-data")
    try:
        async with request.form(max_files=1, max_fields=MAX_FIELDS) as given:
            form, upload = _fields(given, bool(reader.tokens.alignment_heads))
            service.require_name(form.model)
            if (upload.size or 0) > (most := service.config.media.max_audio_bytes):
                raise PayloadTooLarge(f"The file has {upload.size} bytes; --max-audio-bytes is {most}.", "file")
            data = await upload.read()
    except HTTPException as error:
        raise InvalidRequest(f"The form cannot be read: {error.detail}") from error
    made = Transcription(service, origin_of(request), form, data, task, reader)
    await until_disconnect(request.receive, made.read_first())
    if form.stream:
        return EventStream(_events(made))
    await until_disconnect(request.receive, _run(made))
    return _whole(made)


def _fields(given: FormData, has_words: bool) -> tuple[AudioForm, UploadFile]:
    """Return the fields of a form and its file. Raises InvalidRequest."""
    upload = given.get("file")
    if not isinstance(upload, UploadFile):
        raise InvalidRequest("file is required, as a file of the form.", "file")
    values: dict[str, object] = {name: value for name, value in given.items() if name != "file" and value != ""}
    values["timestamp_granularities"] = given.getlist("timestamp_granularities[]")
    form = as_body(AudioForm, values, is_strict=False)
    for name in REFUSED:
        if name in values or f"{name}[]" in values:
            raise unsupported(name)
    if "word" in form.timestamp_granularities and (form.response_format != "verbose_json" or not has_words):
        why = "the model's generation_config.json names no alignment_heads" if not has_words else "use verbose_json"
        raise unsupported("timestamp_granularities", f": {form.response_format} has no times of words: {why}.")
    if form.stream and form.response_format not in ("json", "text"):
        raise InvalidRequest(f"stream has no response_format {form.response_format!r}.", "response_format")
    return form, upload


async def _run(made: Transcription) -> None:
    async for _ in made.pieces():
        pass


async def _events(made: Transcription) -> AsyncGenerator[bytes, None]:
    async for piece in made.pieces():
        if piece:
            yield json_frame(TranscriptDelta(delta=piece))
    num_text = made.num_prompt_tokens
    usage = TranscriptTokens(
        input_tokens=num_text + made.num_sound_tokens,
        input_token_details=TranscriptTokenDetails(audio_tokens=made.num_sound_tokens, text_tokens=num_text),
        output_tokens=made.num_generated_tokens,
        total_tokens=num_text + made.num_sound_tokens + made.num_generated_tokens,
    )
    yield json_frame(TranscriptDone(text=made.text.strip(), usage=usage))


def _whole(made: Transcription) -> Response:
    kind, text = made.form.response_format, made.text.strip()
    usage = SoundUsage(seconds=ceil(made.seconds))
    if kind in ("srt", "vtt"):
        text = subtitles(((each.start, each.end, each.text) for each in made.segments), kind)
    if kind not in ("json", "verbose_json"):
        return Response(text + ("\n" if kind == "text" else ""), media_type="text/plain; charset=utf-8")
    answer: AudioAnswer = Transcript(text=text, usage=usage)
    if kind == "verbose_json":
        language = "en" if made.task == "translate" or made.language is None else made.language
        answer = VerboseTranscript(
            task=made.task,
            language=language,
            duration=round(made.seconds, 3),
            text=text,
            words=made.words if "word" in made.form.timestamp_granularities else None,
            segments=made.segments if made.form.timestamp_granularities != ["word"] else None,
            usage=usage,
        )
    return Response(answer.model_dump_json(), media_type="application/json")
