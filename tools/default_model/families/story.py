"""Short stories: a plot is a chain of stages with one cast of hero, helper, thing and place."""

from __future__ import annotations

import re
from random import Random

from tools.default_model import words
from tools.default_model.item import Check, Item, single
from tools.default_model.wording import a, ask, person

HEROES = (
    *("robot", "boy", "girl", "king", "queen", "prince", "princess", "witch", "giant", "knight", "pirate", "wizard"),
    *("ghost", "mermaid", "cowboy", "astronaut"),
)
STARTS = (
    "Once upon a time there was {a_trait} {animal} named {name} who lived near {a_place}.",
    "{name} was {a_trait} little {animal}. {name} lived in a small house by the {place}.",
    "In a small house near the {place} lived {a_trait} {animal} called {name}.",
    "Long ago, {a_trait} {animal} named {name} lived at the edge of {a_place}.",
)
ENDS = (
    "From that day on, {name} and {friend} were best friends.",
    "That evening {name} went home with a smile and slept well.",
    "{name} never forgot that day.",
    "And {name} learned that even a small {animal} can do great things.",
    "They laughed all the way home, and the {place} was quiet again.",
)
# Plots: stages in order, each with its wordings.
PLOTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lost": (
        (
            "One morning {name} could not find the {color} {thing} that grandmother had left as a gift.",
            "One day {name} lost a {color} {thing}, the dearest thing in the house.",
        ),
        (
            "{name} looked under the bed, behind the door and in the grass, but the {thing} was gone.",
            "{name} searched the whole {place} until noon, but found nothing.",
        ),
        (
            'Then {a_helper} named {friend} came by and said, "I can help you look."',
            'A friendly {helper} called {friend} asked, "Why are you so sad?" and {name} told the whole story.',
        ),
        (
            "Together they followed the path to the old bridge, and there lay the {thing}, shining in the sun.",
            "They looked in every corner, and at last {friend} saw the {thing} under a big leaf.",
        ),
        (
            "{name} thanked {friend} and shared a warm {food} with the new friend.",
            "{name} was so glad that they danced.",
        ),
    ),
    "storm": (
        ("One night a great storm came over the {place}.", "One autumn day dark clouds rolled over the {place}."),
        (
            "The wind blew so hard that the roof of {name}'s house flew away.",
            "The rain fell for hours, and the water came up to the door.",
        ),
        (
            "{name} was afraid, but took {a_thing} and ran out to look for help.",
            '"I must be brave," said {name}, and held the {color} {thing} tight.',
        ),
        (
            'On the hill stood {friend} the {helper}, who opened the door and said, "Come in and get warm."',
            "{friend} the {helper} heard the call and came with a lamp.",
        ),
        (
            "In the morning the sky was {color}, and both of them built the house again.",
            "When the storm was over, they mended the house with wood and rope.",
        ),
    ),
    "wish": (
        (
            "{name} had one big wish: to own {a_color} {thing}.",
            "More than anything, {name} wanted {a_color} {thing}.",
        ),
        (
            "But {a_thing} cost ten coins, and {name} had only two.",
            "But there was no {thing} in the whole {place}.",
        ),
        (
            "So {name} helped {friend} the {helper} to carry {food} to the market every day for a week.",
            'So {name} asked {friend} the {helper}, who said, "Work with me, and we will see."',
        ),
        (
            "On the last day {friend} smiled and gave {name} a box, and in it was the {color} {thing}.",
            "After seven days {name} had enough coins and ran to buy the {thing}.",
        ),
        (
            "{name} was {feeling} and showed it to everyone.",
            '"It is even better than I dreamed," said {name}.',
        ),
    ),
    "river": (
        (
            "One day {name} wanted to cross the wide water to bring {food} to {friend} the {helper}.",
            "On the other side of the water lived {friend} the {helper}, and {name} wanted to visit.",
        ),
        ("But the bridge was broken, and the water was cold and fast.", "But there was no bridge and no boat."),
        (
            "{name} sat down and thought. Then {name} saw {a_color} {thing} lying on the bank.",
            "{name} did not give up, and found {a_color} {thing} in the grass.",
        ),
        (
            "With the {thing} and some wood, {name} made a little raft.",
            "{name} tied the {thing} to a log and sat on top of it.",
        ),
        (
            "Slowly the raft floated over, and {friend} waved from the shore.",
            "It was a wild ride, but {name} came over, and {friend} cheered.",
        ),
    ),
    "song": (
        (
            "{name} loved to sing, but was too shy to sing when others could hear.",
            "{name} sang every night, but only when nobody was near.",
        ),
        (
            "One evening {friend} the {helper} stood behind a tree and listened.",
            "One day {friend} the {helper} heard the song through the window.",
        ),
        (
            '"That is the best song I have ever heard," said {friend}. "Sing at the feast tomorrow!"',
            '"Please sing for all of us," said {friend}, and gave {name} {a_color} {thing} for luck.',
        ),
        (
            "The next day {name} stood before the whole {place}, with shaking knees, and began to sing.",
            "At the feast {name} held the {thing}, closed both eyes and sang.",
        ),
        (
            "When the song ended, everyone clapped and brought {food} and flowers.",
            "It was very quiet at first, and then everyone cheered.",
        ),
    ),
    "box": (
        (
            "While walking by the {place}, {name} found {a_color} box under a stone.",
            "One day {name} dug a hole in the garden and hit {a_color} box.",
        ),
        (
            "The box was locked, and something inside went tick, tick, tick.",
            "There was no key, and the lid would not move.",
        ),
        (
            "{name} carried it to {friend} the {helper}, who knew a lot about locks.",
            '"Who can open this?" asked {name}. "I can," said {friend} the {helper}.',
        ),
        (
            "With a little {food} oil and a lot of patience the box opened, and in it lay {a_thing}.",
            "At the third try the lid sprang open. Inside was {a_thing}, as good as new.",
        ),
        (
            "They put the {thing} in the middle of the village for everyone to use.",
            "{name} gave the {thing} to {friend} as a thank you.",
        ),
    ),
    "race": (
        (
            "Every {season} there was a great race around the {place}.",
            "One {season} day the animals held a race around the {place}.",
        ),
        (
            "{name} was not fast, and {friend} the {helper} had won every year.",
            "Nobody thought that {name} could win against {friend} the {helper}.",
        ),
        (
            "Halfway, {friend} fell over {a_thing} and could not get up.",
            "Near the end, {friend} stopped with a sore foot.",
        ),
        (
            "{name} could have run on to win, but turned back and helped {friend} to stand.",
            '{name} stopped too, and said, "Lean on me."',
        ),
        (
            "They crossed the line side by side, and both got the {color} ribbon.",
            "They came in last, but everyone cheered for them, and they shared {food} afterwards.",
        ),
    ),
}
ASK_ANY = (
    "Tell me a story.",
    "Tell me a short story.",
    "Write a story.",
    "I want to hear a story.",
    "A short story please.",
    "Make up a story.",
    "Tell me something nice.",
    "Write a short story for children.",
)
ASK_ABOUT = (
    "Tell me a story about {x}.",
    "Write a short story about {x}.",
    "Tell a story about {x}",
    "Write a story with {x}.",
    "A story about {x} please",
    "I want a story about {x}.",
    "Make up a story about {x}.",
    "Once upon a time... a story about {x}?",
)


def make(rng: Random) -> Item:
    cast = _cast(rng)
    wanted, needed = _subject(rng, cast)
    prompt = ask(rng, ASK_ABOUT, x=wanted) if wanted else ask(rng, ASK_ANY)
    plot = rng.choice(list(PLOTS.values()))
    shortened = [stage for i, stage in enumerate(plot) if i != 4 or rng.random() < 0.8]
    lines = [rng.choice(wordings) for wordings in (STARTS, *shortened, ENDS)]
    text = re.sub(r"(^|[.!?] )([a-z])", lambda m: m[1] + m[2].upper(), " ".join(lines).format(**cast))
    if "thing" in needed and cast["thing"] not in text:
        text += f" And the {cast['thing']}? It still stands on the shelf."
    key = wanted or prompt
    return single(f"{key} {cast['name']}" if wanted else key, prompt, text, _is_story([cast[slot] for slot in needed]))


def _cast(rng: Random) -> dict[str, str]:
    name, friend = person(rng), person(rng)
    while friend == name:
        friend = person(rng)
    animal, helper = rng.sample(words.ANIMALS, 2)
    if rng.random() < 0.2:
        animal = rng.choice(HEROES)
    place, thing, color = rng.choice(words.PLACES), rng.choice(words.OBJECTS), rng.choice(words.COLORS)
    trait = rng.choice(("small", "clever", "shy", "brave", "kind", "lazy", "curious", "young", "old", "merry", "quiet"))
    return {
        "name": name,
        "friend": friend,
        "animal": animal,
        "helper": helper,
        "a_helper": a(helper),
        "place": place,
        "a_place": a(place),
        "thing": thing,
        "a_thing": a(thing),
        "color": color,
        "a_color": a(color),
        "a_trait": a(trait),
        "food": rng.choice(words.FOODS),
        "feeling": rng.choice(("happy", "proud", "glad")),
        "season": rng.choice(("spring", "summer", "autumn", "winter")),
    }


def _subject(rng: Random, cast: dict[str, str]) -> tuple[str, list[str]]:
    """Return the subject of the story, and the slots it names; empty for any story."""
    kind = rng.randrange(8)
    animal, name, thing = a(cast["animal"]), cast["name"], a(cast["thing"])
    return (
        ("", []),
        (animal, ["animal"]),
        (f"{animal} named {name}", ["animal", "name"]),
        (f"{animal} and {thing}", ["animal", "thing"]),
        (f"{animal} called {name} and {thing}", ["animal", "name", "thing"]),
        (f"{name} the {cast['animal']}", ["animal", "name"]),
        (thing, ["thing"]),
        (name, ["name"]),
    )[kind]


def _is_story(needed: list[str]) -> Check:
    """Return a check for four or more whole sentences, none repeated, that name everything requested."""

    def check(answer: str) -> bool:
        sentences = [s for s in re.split(r'(?<=[.!?"]) ', answer.strip()) if s]
        is_whole = answer.strip().endswith((".", "!", "?", '"'))
        named = all(word.lower() in answer.lower() for word in needed)
        return is_whole and named and 4 <= len(sentences) <= 16 and len(set(sentences)) == len(sentences)

    return check
