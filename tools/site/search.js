// tools/site/search.js — finds sections that contain all typed words; matches in a heading come first
'use strict';
{
  const field = document.querySelector('#search'), list = document.querySelector('#found');
  const place = field.dataset.root;
  let sections = null;
  const load = () => sections || (sections = new Promise(done => {
    const script = document.createElement('script');
    script.src = place + 'search-index.js';
    script.onload = () => done(window.attuneSections.map(s => ({ ...s, low: `${s.page} ${s.heading} ${s.text}`.toLowerCase(), head: `${s.page} ${s.heading}`.toLowerCase() })));
    document.head.append(script);
  }));
  const show = async () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(w => w);
    if (!words.length) return list.hidden = true;
    const all = await load();
    const found = all.filter(s => words.every(w => s.low.includes(w)));
    const rank = s => words.reduce((sum, w) => sum + (s.head.includes(w) ? 10 : 0), 0) - s.low.length / 1e5;
    found.sort((a, b) => rank(b) - rank(a));
    list.replaceChildren(...found.slice(0, 20).map(s => {
      const at = Math.max(0, s.low.indexOf(words[0]) - s.head.length - 40), link = document.createElement('a');
      link.href = place + s.url;
      link.append(s.heading && s.heading !== s.page ? `${s.page}: ${s.heading}` : s.page, Object.assign(document.createElement('small'), { textContent: s.text.slice(at, at + 120) }));
      const item = document.createElement('li');
      item.append(link);
      return item;
    }));
    if (!found.length) list.replaceChildren(Object.assign(document.createElement('li'), { textContent: 'Nothing has all these words.', style: 'padding: 7px 12px' }));
    list.hidden = false;
  };
  field.oninput = show;
  field.form.onsubmit = event => { event.preventDefault(); list.querySelector('a')?.click(); };
  document.addEventListener('keydown', event => {
    if (event.key === '/' && !/INPUT|TEXTAREA|SELECT/.test(document.activeElement.tagName)) event.preventDefault(), field.focus();
    if (event.key === 'Escape') list.hidden = true;
    const links = [...list.querySelectorAll('a')], at = links.indexOf(document.activeElement);
    if (list.hidden || !links.length || !['ArrowDown', 'ArrowUp'].includes(event.key)) return;
    event.preventDefault();
    (links[at + (event.key === 'ArrowDown' ? 1 : -1)] || field).focus();
  });
}
