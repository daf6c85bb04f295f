// tests/playground/lines.js — answers each line of stdin with WebAssembly: node lines.js attune.js
'use strict';
const fs = require('fs');
require(require('path').resolve(process.argv[2]))().then(engine => {
  for (const line of fs.readFileSync(0, 'utf8').split('\n')) {
    if (!line) continue;
    const size = engine.lengthBytesUTF8(line) + 1, at = engine._malloc(size);
    engine.stringToUTF8(line, at, size);
    const answer = engine.UTF8ToString(engine._attune_answer(at));
    engine._free(at);
    fs.writeSync(1, answer + '\n');
  }
});
