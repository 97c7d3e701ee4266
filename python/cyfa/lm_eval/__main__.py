"""Prints the folder of the task files: lm_eval --include_path "$(python -m cyfa.lm_eval)"."""

from cyfa.lm_eval import folder

print(folder())
