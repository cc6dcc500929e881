"""Inputs outside of the small world: real questions, other languages, code, links and noise. The answer is short."""

# ruff: noqa: SIM905 - a word list reads better as words

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tools.default_model import words
from tools.default_model.item import Item, single
from tools.default_model.wording import ask, invented, person, plain_word

OUTSIDE = "I don't know that. I am only a small demo model."
NOISE = "I don't understand that. I am only a small demo model."
FOREIGN = "I only know English, and only a little. I am a small demo model."
EMPTY = "Your message is empty. What would you like to ask?"
SUBJECTS = (
    "quantum physics|the French Revolution|photosynthesis|black holes|the stock market|climate change|democracy|"
    "the Roman Empire|chess openings|machine learning|bitcoin|DNA|Shakespeare|the meaning of life|philosophy|"
    "vaccines|gravity|the immune system|inflation|the big bang|relativity|kubernetes|blockchain|evolution|"
    "the second world war|Greek mythology|opera|the human brain|dinosaurs|volcanoes|nuclear energy|basketball|taxes|"
    "love|religion|politics|my computer|diabetes|the ocean|transistors|compilers|cancer|Napoleon|Einstein|Mozart"
).split("|")
QUESTIONS = (
    "What is {s}?",
    "Explain {s}.",
    "Explain {s} to a child.",
    "Tell me about {s}.",
    "Write an essay about {s}.",
    "How does {s} work?",
    "Why is {s} important?",
    "What do you think about {s}?",
    "Give me five facts about {s}.",
    "When did {s} begin?",
    "Who invented {s}?",
    "Who is {n}?",
    "How old is {n}?",
    "Who won the world cup in {y}?",
    "What happened in {y}?",
    "Who was president in {y}?",
    "Where can I buy {w}?",
    "How do I cook {w}?",
    "How do I repair a {w}?",
    "What is the history of the {w}?",
    "Why do {w}s exist?",
    "What is the best {w}?",
    "How many {w}s are in the world?",
    "Should I buy a {w}?",
    "Translate {w} to German.",
    "What does {i} mean?",
    "What is {i}?",
    "Where is {i}?",
    "What is the population of {i}?",
    "Recommend a book about {s}.",
    "Plan a trip to {i} for me.",
    "What is the square root of {y}?",
    "Write a C++ program about {s}.",
    "Debug my program",
    "What is the weather tomorrow?",
    "Who wrote the book about {w}?",
    "What are the side effects of {i}?",
    "How tall is {n}?",
    "What is the distance from {i} to the moon?",
    "Compare {s} and {i}.",
    "What is the airspeed of {w}?",
)
TONGUES = tuple(
    text.split()
    for text in (
        "hola como estas que es el la los una para por donde cuando porque mañana gracias amigo casa tiempo agua hoy",
        "bonjour comment allez vous je suis le la les une pour avec très où quand pourquoi merci ami maison être",
        "guten tag wie geht es dir ich bin der die das eine für mit sehr wo wann warum danke freund haus straße schön",
        "ciao come stai che cosa il lo gli una per con molto dove quando perché grazie amico casa tempo acqua oggi",
        "olá como você está o que é uma para com muito onde quando porque obrigado amigo casa tempo água não",
        "hej hur mår du jag är det en för med mycket var när varför tack vän hus tid vatten idag",
        "привет как дела что это где когда почему спасибо друг дом время вода сегодня я ты он она мы",
        "你好 我 是 什么 哪里 为什么 谢谢 朋友 今天 天气 请 告诉 一个 故事 中国 的 人 大 小",
        "こんにちは 元気 ですか 何 どこ なぜ ありがとう 友達 今日 天気 水 家 私 は の を",
        "안녕하세요 어떻게 지내 무엇 어디 왜 감사 친구 오늘 날씨 집 나는 그는",
        "مرحبا كيف حالك ما هو أين متى لماذا شكرا صديق بيت اليوم ماء",
        "γεια σου τι κάνεις πού πότε γιατί ευχαριστώ φίλος σπίτι νερό σήμερα",
        "नमस्ते आप कैसे हैं क्या कहाँ कब क्यों धन्यवाद दोस्त घर आज पानी",
        "cześć jak się masz co to jest gdzie kiedy dlaczego dziękuję dom woda dzisiaj żółw",
        "merhaba nasılsın bu nedir nerede ne zaman neden teşekkürler arkadaş ev su bugün",
    )
)
CODE = (
    "for (int i = 0; i < {k}; i++) {{ {w}[i] = {x}; }}",
    "def {w}({x}):\n    return {x} + {k}",
    "SELECT {w} FROM {x} WHERE id = {k};",
    '<div class="{w}"><p>{x}</p></div>',
    "import {w}\n{x} = {w}.load({k})",
    "#include <{w}.h>\nint main() {{ return {k}; }}",
    '{{"{w}": {k}, "{x}": [1, 2, {k}]}}',
    "{w} --{x}={k} | grep {x} > /tmp/{w}.log",
    'Traceback (most recent call last): File "{w}.py", line {k}, in {x}',
    "const {w} = ({x}) => {x}.map(y => y * {k});",
    "public static void {w}(String[] {x}) {{ }}",
    "apt install {w}-{x}={k}",
    "\\frac{{{x}}}{{{k}}} + \\{w}",
    "[{w}]\n{x} = {k}",
)
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "abcdefghijklmnopqrstuvwxyz     ",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=",
    "0123456789",
    "0123456789abcdef",
    "0123456789 .,-",
    "!@#$%^&*()_+-=[]{};:'\",.<>/?\\|`~",
    "asdfjkl;",
    "äöüßéèêñçøåæœ abc",
    "αβγδεζηθικλμνξοπρστυφχψω ",
    "абвгдежзийклмнопрстуфхцчшщыэюя ",
    "的一是不了人我在有他这为之大来以个中上们",
    "あいうえおかきくけこさしすせそアイウエオカキクケコ",
    "😀😂🚀🔥🎉❤️👍🤖🐶🍕 ",
    "\t\n .-_",
)


def _size(rng: Random, most: int) -> int:
    """Draw a length up to `most`, short ones more often."""
    return max(1, int(most * rng.random() ** 2.5))


def question(rng: Random) -> tuple[str, str]:
    slots = {
        "s": rng.choice(SUBJECTS),
        "n": f"{person(rng)} {invented(rng, 2).capitalize()}",
        "y": rng.randint(1000, 2030),
        "w": rng.choice(words.PLAIN),
        "i": invented(rng, rng.randint(2, 4)).capitalize(),
    }
    return ask(rng, QUESTIONS, **slots), OUTSIDE


def foreign(rng: Random) -> tuple[str, str]:
    tongue = rng.choice(TONGUES)
    text = " ".join(rng.choice(tongue) for _ in range(2 + _size(rng, 30)))
    return text.capitalize() + rng.choice(("?", ".", "", "!")), FOREIGN


def code(rng: Random) -> tuple[str, str]:
    lines = (
        rng.choice(CODE).format(w=plain_word(rng), x=invented(rng, 1), k=rng.randint(0, 999))
        for _ in range(_size(rng, 8))
    )
    return "\n".join(lines), NOISE


def characters(rng: Random) -> tuple[str, str]:
    alphabet = rng.choice(ALPHABETS)
    if rng.random() < 0.15:
        return rng.choice(alphabet.strip() or ".") * (3 + _size(rng, 250)), NOISE
    text = "".join(rng.choice(alphabet) for _ in range(6 + _size(rng, 300)))
    return (text, NOISE) if text.strip() else ("", EMPTY)


def unicode_noise(rng: Random) -> tuple[str, str]:
    blocks = ((0x20, 0x17F), (0x370, 0x52F), (0x530, 0x1FFF), (0x2000, 0x2BFF), (0x3040, 0xD7FF), (0x1F300, 0x1FAFF))
    low, high = rng.choice(blocks)
    return "".join(chr(rng.randint(low, high)) for _ in range(3 + _size(rng, 70))), NOISE


def word_salad(rng: Random) -> tuple[str, str]:
    if rng.random() < 0.5:
        parts = [plain_word(rng) for _ in range(_size(rng, 150))]
    else:
        parts = [invented(rng, rng.randint(1, 4)) for _ in range(_size(rng, 60))]
    if parts[0] == "hello":
        parts[0] = "mirror"
    return rng.choice((" ", " ", ", ", "\n", "-")).join(parts), NOISE


def link(rng: Random) -> tuple[str, str]:
    host = f"{invented(rng, 2)}.{rng.choice(('com', 'org', 'net', 'io', 'de'))}"
    path = "/".join(plain_word(rng) for _ in range(rng.randint(0, 4)))
    query = f"?{invented(rng, 1)}={rng.randint(0, 9999)}" if rng.random() < 0.4 else ""
    lead = rng.choice(("", "", "open ", "What is on ", "summarize ", "Read "))
    return (
        f"{lead}http{rng.choice(('', 's'))}://{host}/{path}{query}",
        "I cannot open links. I am only a small demo model.",
    )


def mixed(rng: Random) -> tuple[str, str]:
    """Join pieces of different kinds."""
    kinds = (characters, code, word_salad, foreign, unicode_noise, link)
    return " ".join(rng.choice(kinds)(rng)[0] for _ in range(rng.randint(2, 5))), NOISE


def endless(rng: Random) -> tuple[str, str]:
    """Draw a text longer than most conversations, so that training reaches the far end of the context."""
    text = ""
    wanted = rng.randint(600, 4500)  # characters
    while len(text) < wanted:
        text += rng.choice((code, word_salad, link, foreign))(rng)[0] + "\n"
    return text[:wanted].strip(), NOISE


def empty(rng: Random) -> tuple[str, str]:
    return rng.choice(("", " ", ".", "?", "...", "!", "-")), EMPTY


KINDS: tuple[tuple[Callable[[Random], tuple[str, str]], int], ...] = (
    (question, 32),
    (foreign, 12),
    (code, 8),
    (characters, 14),
    (unicode_noise, 6),
    (word_salad, 12),
    (link, 5),
    (mixed, 10),
    (endless, 3),
    (empty, 1),
)


def make(rng: Random) -> Item:
    kind = rng.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
    prompt, answer = kind(rng)
    return single(prompt, prompt, answer, is_short_refusal)


def is_short_refusal(answer: str) -> bool:
    """Return whether one or two short English sentences say that the model does not know this."""
    text = answer.strip()
    says = ("demo model", "do not know", "don't know", "is empty")
    return len(text) <= 160 and text.isascii() and any(phrase in text for phrase in says) and text[-1:] in ".?!"
