# tools/dev/answers.py — answers.py ADDRESS TEXT: checks that the page at an address contains the text
import sys
import urllib.error
import urllib.request

try:
    with urllib.request.urlopen(sys.argv[1], timeout=10) as page:
        sys.exit(sys.argv[2] not in page.read().decode())
except urllib.error.URLError:
    sys.exit(1)
