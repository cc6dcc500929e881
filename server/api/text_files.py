"""Files of a checkpoint that the API reads, and the processes that work with them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import CheckpointError
from ..link.messages import EngineInfo
from ..media.reader import PictureReader, picture_reader
from ..media.speech import SpeechReader, speech_reader
from ..text.chat_template import load_chat_template
from ..text.fair_threads import FairThreads, text_threads
from ..text.generation_config import GenerationDefaults, load_generation_defaults
from ..text.grammar_process import GrammarProcess
from ..text.schema_check import SchemaChecks
from ..text.template_process import RequestTemplates, TemplateProcess
from ..text.tokenizer import Tokenizer, load_tokenizer
from .config import ApiConfig


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Tokenizer, template, defaults and grammars: the parts of a checkpoint that the API uses."""

    tokenizer: Tokenizer
    template: TemplateProcess | None  # None: the checkpoint has no chat template
    templates: RequestTemplates | None  # None: templates of requests are not trusted
    defaults: GenerationDefaults
    grammars: GrammarProcess
    checks: SchemaChecks
    threads: FairThreads
    pictures: PictureReader | None  # None: the checkpoint is of no family that reads pictures
    speech: SpeechReader | None  # None: of no family that transcribes

    def close(self) -> None:
        """End the processes of templates, grammars and checks."""
        self.threads.close()
        for process in (self.grammars, self.checks, self.template, self.templates, self.pictures, self.speech):
            if process is not None:
                process.close()

    def start_media(self, info: EngineInfo) -> tuple[PictureReader | None, SpeechReader | None]:
        """Start the readers of pictures and of sound where the engine takes them. Raises CheckpointError."""
        pictures = self.pictures if info.reads_pictures else None
        if pictures is not None:
            pictures.start()
            if self.tokenizer.token_id(pictures.family.placeholder) is None:
                what = f"has no token {pictures.family.placeholder!r}, which stands for pictures"
                raise CheckpointError("tokenizer.json", what)
        if self.speech is not None:
            self.speech.start()
        return pictures, self.speech


def load_text_files(config: ApiConfig) -> TextFiles:
    """Read tokenizer, chat template and generation defaults. Raises CheckpointError or SettingsError."""
    if not os.path.lexists(config.model_path / "config.json"):
        raise CheckpointError("config.json", f"there is none in {config.model_path}")
    tokenizer, threads = load_tokenizer(config.tokenizer_path), text_threads()
    size = threads.most_each + 1  # of process pools: another client finds a free process
    source = load_chat_template(config.tokenizer_path, config.chat_template)
    template = None
    if source is not None:
        template = TemplateProcess(source, tokenizer.special, size=size)
        template.start()
    defaults = load_generation_defaults(config.model_path, tokenizer)
    templates = RequestTemplates(tokenizer.special, size) if config.trust_request_chat_template else None
    grammars = GrammarProcess(config.tokenizer_path, config.model_path, threads=threads)
    pictures = picture_reader(config.model_path, config.media)
    speech = speech_reader(config.model_path, tokenizer, config.media)
    checks = SchemaChecks(threads)
    return TextFiles(tokenizer, template, templates, defaults, grammars, checks, threads, pictures, speech)


def require_embeddings(tokenizer: Tokenizer, info: EngineInfo) -> None:
    """Raise CheckpointError at start when the tokenizer has ids without embeddings in the model."""
    if tokenizer.vocab_size > info.vocab_size:
        raise CheckpointError(
            "tokenizer.json",
            f"its largest token id is {tokenizer.vocab_size - 1}, but the model has embeddings for ids below "
            f"{info.vocab_size} (vocab_size of config.json): this is another model's tokenizer",
        )
