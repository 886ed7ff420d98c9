"""`rollstream status`: one look at the pipeline that names a cause (docs/adr/0028-status-and-doctor.md).

reach.py    a connection within two seconds, or why there is none
facts.py    what plain commands answered; judges nothing
troubles.py the causes that the facts show, pure
verdict.py  what they come to
view.py     for people and for programs
"""
