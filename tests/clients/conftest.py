collect_ignore_glob = ["*_cases.py"]  # they import clients, in processes of their own
