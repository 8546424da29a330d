"""The page of a program: its explanation drawn, as one self-contained HTML file.

    explanation (plain data)  ->  drawing (boxes, groups, edges)  ->  page (HTML, styles and scripts of `assets/`, libraries of packages)

Layout of the graph and interaction come from JavaScript libraries that installed packages ship (`libraries.py`). Nothing here decides
anything about a program, and nothing of the compiler is imported: a saved program draws its page without it.
"""
