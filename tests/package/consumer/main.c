// tests/package/consumer/main.c — a user's program in C: the header compiles, the library links and answers
#include <attune/c.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  attune_what what;
  memset(&what, 0, sizeof what);
  what.size = sizeof what;
  what.mask.text = "kv <= q";
  attune_attention* attention = NULL;
  attune_error* error = attune_new(&what, &attention);
  puts(!error && attune_version() == ATTUNE_VERSION ? "ok" : "wrong");
  attune_free(attention);
  return 0;
}
