// playground/page/question.js — what a question consists of, and a question as a link
'use strict';

const parts = ['score', 'mask', 'prob', 'sink'];
const numbers = ['q_len', 'kv_len', 'q_offset', 'batch', 'heads', 'b', 'h', 'd'];
const types = ['f32', 'i32', 'bool', 'f16', 'bf16', 'f64', 'i64', 'i16', 'i8', 'u8'];
const fills = ['normal', 'positive', 'slopes', 'documents', 'lengths', 'indices', 'ramp', 'coins', 'buckets', 'morton',
  'column', 'enter', 'leave', 'list'];
// Words that take a limit, and words that take a seed.
const limited = ['documents', 'lengths', 'indices', 'ramp', 'coins', 'buckets'];
const seeded = ['normal', 'positive', 'documents', 'lengths', 'indices', 'coins', 'enter', 'leave'];
const usual = { score: '', mask: '', prob: '', sink: '', lets: [], params: [], captures: [], q_len: 256, kv_len: 256,
  q_offset: 0, tile: [16, 16], batch: 1, heads: 8, b: 0, h: 0, random: false, d: 64 };

// Only members that differ from the defaults, which keeps links short.
function compact(from) {
  const out = {};
  for (const [name, value] of Object.entries(from))
    if (JSON.stringify(value) !== JSON.stringify(usual[name])) out[name] = value;
  return out;
}
function linkOf(from) {
  const bytes = new TextEncoder().encode(JSON.stringify(compact(from)));
  return '#' + btoa(Array.from(bytes, b => String.fromCharCode(b)).join('')).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
}
function stateOf(link) {
  const text = atob(link.replace(/^#/, '').replace(/-/g, '+').replace(/_/g, '/'));
  const found = JSON.parse(new TextDecoder().decode(Uint8Array.from(text, c => c.charCodeAt(0))));
  if (typeof found !== 'object' || !found) throw new Error('no object');
  const out = structuredClone(usual);
  // A link may hold anything: members whose type differs from the default's are ignored.
  for (const name of Object.keys(usual))
    if (found[name] != null && typeof found[name] === typeof usual[name] && Array.isArray(found[name]) === Array.isArray(usual[name]))
      out[name] = found[name];
  out.captures = out.captures.filter(c => c && typeof c === 'object');
  out.params = out.params.map(String), out.lets = out.lets.map(String);
  return out;
}
