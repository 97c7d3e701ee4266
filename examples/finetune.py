#!/usr/bin/env python3
"""Fine-tunes a checkpoint with transformers' Trainer, on Alice's Adventures in Wonderland, and saves it.

The folder that it writes is read by from_pretrained() and by the program: `cyfa generate FOLDER -p "Alice"`.

    python examples/finetune.py OUT
"""

import argparse
import pathlib

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

import cyfa.hf

ROOT = pathlib.Path(__file__).resolve().parents[1]


def sequences(tokenizer, text, length):
    """The text's tokens, cut into rows of `length`; labels are the same tokens, which the model shifts."""
    ids = tokenizer(text, add_special_tokens=False).input_ids
    rows = [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]
    return [{"input_ids": row, "labels": row} for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path, help="folder for the model")
    parser.add_argument("--model", default=ROOT / "models/cyfa-4m")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    options = parser.parse_args()

    transformers.set_seed(1)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    text = (ROOT / "data/alice/alice.txt").read_text()
    cut = text.index("CHAPTER XI\n")  # the last two chapters are held out
    train, held_out = (sequences(tokenizer, part, options.length) for part in (text[:cut], text[cut:]))

    trainer = cyfa.hf.CyfaTrainer(  # Trainer that decays no gates and readouts
        model=model,
        args=TrainingArguments(
            output_dir=str(options.out / "run"),
            max_steps=options.steps,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=8,
            learning_rate=1e-3,
            lr_scheduler_type="cosine",
            warmup_steps=5,
            weight_decay=0.05,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
        ),
        train_dataset=train,
        eval_dataset=held_out,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    print(f"loss on the chapters that were held out: {before:.3f} before, {after:.3f} after {options.steps} steps")

    trainer.save_model(str(options.out))
    tokenizer.save_pretrained(options.out)
    prompt = tokenizer("Alice thought", return_tensors="pt").to(model.device)
    print(tokenizer.decode(model.generate(**prompt, max_new_tokens=40, do_sample=False)[0], skip_special_tokens=True))


if __name__ == "__main__":
    main()
