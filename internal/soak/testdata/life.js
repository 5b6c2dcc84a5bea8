'use strict';
// Collections, regular expressions, exceptions, promises, and a worker.
const {Worker, isMainThread, parentPort, workerData} = require('worker_threads');
const crypto = require('crypto');

function once(seed) {
  const m = new Map();
  for (let i = 0; i < 3000; i++) m.set('k' + (i * 7919 % 1009), (m.get('k' + i) || 0) + i * seed % 97);
  let sum = 0;
  for (const [k, v] of m) {
    try {
      if (v % 5 === 0) throw new Error(k);
      sum += v;
    } catch (e) {
      sum -= e.message.length + (e.stack.match(/once/g) || []).length;
    }
  }
  const text = JSON.stringify([...m]).replace(/\d+/g, (d) => (d.length * 3).toString());
  return sum + ' ' + crypto.createHash('sha256').update(text).digest('hex').slice(0, 16);
}

async function main(n) {
  for (let i = 1; i <= n; i++) {
    const r = await Promise.resolve(i).then(once);
    if (i % 50 === 0) console.log(i, r);
  }
}

if (isMainThread) {
  const n = +process.argv[2];
  const w = new Worker(__filename, {workerData: n});
  let told;
  w.on('message', (m) => { told = m; });
  const over = new Promise((done) => w.on('exit', done));
  main(n).then(() => over).then(() => console.log('worker', told));
} else {
  let all = '';
  for (let i = 1; i <= workerData; i++) all = once(i);
  parentPort.postMessage(all);
}
