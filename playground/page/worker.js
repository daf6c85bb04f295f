// playground/page/worker.js — answers questions one after another in a worker, which the page can stop
const engine = attune();
onmessage = async ({ data }) => {
  const { id, question } = data;
  try {
    const m = await engine, size = m.lengthBytesUTF8(question) + 1, at = m._malloc(size);
    m.stringToUTF8(question, at, size);
    const from = performance.now(), answer = m.UTF8ToString(m._attune_answer(at));
    m._free(at);
    postMessage({ id, answer, took: performance.now() - from });
  } catch (trouble) {
    postMessage({ id, trouble: String(trouble) });
  }
};
