"""From recipes and logs to an archive on disk, and back from it to tables.

A build reads each search into a fragment (``stage``), merges the fragments into tables
(``consolidate``), writes these as Parquet (``shards``) and says in ``manifest.json`` what is there.
Others open an archive, look for doubtful labels (``info``) and check it (``validate``).
"""
