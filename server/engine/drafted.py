"""Rows of a step that verify drafts, and the tokens that follow from them.

A draft is accepted when it is the token that its row samples. Sampling depends on the logits, the history and the
token's index alone, so the tokens are those of steps of one token.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config.speculation import is_accepted
from ..types import SampledToken, ScheduledSeq
from .grammar_masks import OFF_GRAMMAR
from .logits import changes_logits, num_generated


def draft_rows(seqs: Sequence[ScheduledSeq], is_whole: bool = False) -> tuple[list[ScheduledSeq], list[int]]:
    """Return a sequence for each row to sample, and how many tokens it has generated.

    Each of `seqs` has a row without its drafts, then one after each draft, whose history ends with the draft and whose
    `num_drafts` says how many it has. Where sampling depends on no token before, and `is_whole` is false, the sequence
    itself stands for all its rows.
    """
    rows: list[ScheduledSeq] = []
    drawn: list[int] = []
    for seq in seqs:
        count, known = seq.num_drafts, num_generated(seq)
        drawn += range(known, known + 1 + count)
        if not (count and (is_whole or seq.sampling.grammar or changes_logits(seq.sampling))):
            rows += [seq] * (1 + count)
            continue
        first = len(seq.token_ids) - count
        rows.append(seq._replace(token_ids=seq.token_ids[:first], num_drafts=0))
        for end in range(first + 1, first + 1 + count):
            history = [*seq.history, *seq.token_ids[first:end]]
            rows.append(seq._replace(token_ids=seq.token_ids[:end], history=history, num_drafts=end - first))
    return rows, drawn


def accepted_tokens(seq: ScheduledSeq, tokens: Sequence[SampledToken]) -> tuple[SampledToken, ...]:
    """Return the tokens after accepted drafts of `seq`, given the token of its row and of the row after each draft."""
    count, drafts = 0, seq.token_ids[len(seq.token_ids) - seq.num_drafts :]
    for token, draft, following in zip(tokens, drafts, tokens[1:], strict=False):
        if token.error is not None or token.token_id != draft or following.error == OFF_GRAMMAR:
            break
        count += 1
    return tuple(tokens[1 : 1 + count])


def with_synthetic(rows: Sequence[ScheduledSeq], tokens: list[SampledToken], rate: float) -> list[SampledToken]:
    """Return `tokens` with drafts in place of sampled tokens, each with the chance `rate`. Not the model's output.

    The chance is drawn from the request's seed and the token's index.
    """
    tokens = list(tokens)
    for i, after in enumerate(rows[1:]):  # the row after a draft; row i samples in its place
        if after.num_drafts:
            draft = after.token_ids[-1]
            if is_accepted(rate, after.sampling.seed, num_generated(after)):
                tokens[i] = SampledToken(draft)
            elif tokens[i].token_id == draft:  # by chance
                tokens[i] = SampledToken(draft - 1 if draft else 1)
    return tokens
