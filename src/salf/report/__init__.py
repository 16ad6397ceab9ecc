"""Results for people: tables in the terminal, pictures, and pages that need no network.

Tables need no extra packages. Pictures and pages need `pip install 'salf[report]'`, which is
imported when the first one is made.
"""
