"""Fine-tunes a network with transformers' Trainer, and predicts, for `benchmarks.public_record`.

    python -m benchmarks.torch_trainer MODEL DIRECTORY KIND --output_dir=RUN ...

MODEL is a directory of Hugging Face's files, DIRECTORY has train.csv and test.csv, KIND is
regression or classification, and TrainingArguments names the flags. It writes
RUN/test_results.tsv as `run_classifier.py` does, but of labels their logits. If KIND is words, it
goes on pretraining with masked words instead: RUN becomes a directory of Hugging Face's files, and
its losses.json has the losses of the test's texts. This module only needs torch and transformers.
"""

import json
import sys

from benchmarks import csv_rows

LENGTH = 128  # the default of `run_classifier.py`


def main(model: str, directory: str, kind: str, *flags: str) -> None:
    import transformers

    (arguments,) = transformers.HfArgumentParser(
        transformers.TrainingArguments
    ).parse_args_into_dataclasses([*flags])
    transformers.set_seed(arguments.seed)
    tables = {name: csv_rows.read(f"{directory}/{name}.csv") for name in ("train", "test")}
    names = sorted({row["label"] for row in tables["train"]}) if kind == "classification" else []
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    if kind == "words":
        network = transformers.AutoModelForMaskedLM.from_pretrained(model)
        collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    else:
        network = transformers.AutoModelForSequenceClassification.from_pretrained(
            model, num_labels=len(names) or 1
        )
        collator = transformers.DataCollatorWithPadding(tokenizer)

    def examples(rows):
        for row in rows:
            example = tokenizer(row["text"], truncation=True, max_length=LENGTH)
            if kind != "words":
                example["label"] = names.index(row["label"]) if names else float(row["label"])
            yield example

    trainer = transformers.Trainer(
        network,
        arguments,
        data_collator=collator,
        train_dataset=list(examples(tables["train"])),
        eval_dataset=list(examples(tables["test"])),
    )
    losses = {"start": trainer.evaluate()["eval_loss"]} if kind == "words" else {}
    trainer.train()
    if kind == "words":
        losses["loss"] = trainer.evaluate()["eval_loss"]
        trainer.save_model()
        tokenizer.save_pretrained(arguments.output_dir)
        with open(f"{arguments.output_dir}/losses.json", "w", encoding="utf-8") as writer:
            json.dump(losses, writer)
        return
    # Batches by length, too, would give the predictions in the order of the texts' lengths.
    arguments.train_sampling_strategy = "random"
    outputs = trainer.predict(list(examples(tables["test"]))).predictions
    with open(f"{arguments.output_dir}/test_results.tsv", "w", encoding="utf-8") as writer:
        writer.writelines("\t".join(map(str, row)) + "\n" for row in outputs.tolist())


if __name__ == "__main__":
    main(*sys.argv[1:])
