"""Two programs that train the same, in turn, so that both see the same machine."""

import statistics

FIRST_STEPS = 10  # of which it is read how many a round takes


def contest(check, ours, theirs, model, seconds, batches=1):
    """Medians over the rounds, in about so many seconds. ratio: our speed by theirs, of the same round.

    ours, theirs  of check.program(): they answer as bench/peer/talk.py says
    batches       times the model's usual batch
    """
    sizes, batch = check.sizes, batches * check.sizes.batches[model]
    with check.start(ours) as one:
        with check.start(theirs) as other:
            both = (one, other)
            ask = {"model": model, "batch": batch, "warmup": sizes.warmup}
            first = [program.ask(steps=min(FIRST_STEPS, sizes.most_steps), **ask) for program in both]
            round_ms = sum(answer["step_ms"] for answer in first)
            steps = int(1000 * seconds / sizes.rounds / round_ms)
            steps = max(1, min(sizes.most_steps, steps))
            rounds = []
            for number in range(sizes.rounds):  # who comes first changes
                order = both if number % 2 == 0 else both[::-1]
                answers = {program: program.ask(steps=steps, **ask)["step_ms"] for program in order}
                rounds.append((answers[one], answers[other]))
    ratios = [theirs_ms / ours_ms for ours_ms, theirs_ms in rounds]
    return {
        "model": model,
        "batch": batch,
        "steps": steps,
        "rounds": len(rounds),
        "our_step_ms": round(statistics.median(ours_ms for ours_ms, _ in rounds), 4),
        "their_step_ms": round(statistics.median(theirs_ms for _, theirs_ms in rounds), 4),
        "ratio": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }
