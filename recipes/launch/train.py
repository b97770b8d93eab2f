"""One method under any launcher: `trl.GRPOTrainer` with a constraint; saves only the final model.

`trustclip run` keeps checkpoints and continues exactly after a kill, under the same launchers; this
script is a start for your own. Settings are fields of `ConstrainedGRPOConfig` and of `Task`, in a
file (``--config``) or on the command line.
"""

from dataclasses import dataclass

from trl import TrlParser

from trustclip.engines.trl import ConstrainedGRPOConfig, ConstrainedGRPOTrainer
from trustclip.train.durable.ranks import leave
from trustclip.train.models import load_model
from trustclip.train.problems.arithmetic import Arithmetic
from trustclip.train.problems.prompts import messages, prompt_style
from trustclip.train.problems.sources import load_problems
from trustclip.train.problems.verify import AnswerReward


@dataclass
class Task:
    """Model and data, under the same names as in a recipe."""

    model: str
    dataset: str
    prompt_style: str = "solution"
    limit: int | None = None


def main() -> None:
    from datasets import Dataset

    task, args = TrlParser((Task, ConstrainedGRPOConfig)).parse_args_and_config()
    if task.dataset == "arithmetic":
        problems = Arithmetic(seed=args.seed).train(task.limit or 1024)
    else:
        problems = load_problems(task.dataset, limit=task.limit)
    rows = [
        {"prompt": messages(problem.problem, task.prompt_style), "answer": problem.answer}
        for problem in problems
    ]
    model, tokenizer = load_model(task.model, task.prompt_style, args.seed)
    reward = AnswerReward(style=prompt_style(task.prompt_style).extraction)
    trainer = ConstrainedGRPOTrainer(
        model, reward, args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    trainer.train()
    trainer.save_model()
    reward.verifier.close()


if __name__ == "__main__":
    main()
    leave()
