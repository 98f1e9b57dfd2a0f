"""Object stores and durable files: a local folder or any fsspec URL with create-only writes, and how it is reached.

What reads and writes objects belongs here, also the download of listed files with its verification (`transfer`); what the
objects of a run mean belongs in `opd.runs`.
"""
