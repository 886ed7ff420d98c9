"""The demo: a whole pipeline on this machine, one real step of rollouts, and a picture of what happened.

python -m ops.demo            what `./ops/launch demo` runs
python -m ops.demo down       what `./ops/launch down` runs

host.py       the process that holds the server, the workers and the scripted model; it ends with the demo, or stays with --keep
places.py     where a demo keeps its things
trainer.py    feeds the problems, takes the step
view.py       the live lines and the summary
"""
