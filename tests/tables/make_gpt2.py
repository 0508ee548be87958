"""Writes a small random GPT-2 as Hugging Face's transformers saves it, and what it says of some
tokens: config.json, model.safetensors and answers.json. Needs torch and transformers:

    python tests/tables/make_gpt2.py FOLDER ['{"n_head": 3, ...}']

tests/tables/gpt2 was made so, without options; tests/unit/models/test_gpt2_file.cpp reads it, and
makes others where transformers is installed.
"""

import json
import pathlib
import sys

import torch
import transformers


def main(folder, options="{}"):
    own = {"vocab_size": 23, "n_positions": 10, "n_embd": 16, "n_layer": 2, "n_head": 2}
    own |= {"bos_token_id": 0, "eos_token_id": 0} | json.loads(options)
    config = transformers.GPT2Config(**own)
    torch.manual_seed(20261125)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():  # far from the small values, the zeros and the ones that it begins with
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        tokens = torch.randint(config.vocab_size, (2, config.n_positions))
        logits = model(tokens).logits
    model.save_pretrained(folder)
    answers = {"tokens": tokens.tolist(), "logits": logits.flatten().tolist()}
    (pathlib.Path(folder) / "answers.json").write_text(json.dumps(answers) + "\n")


main(*sys.argv[1:])
