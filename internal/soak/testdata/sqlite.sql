DROP TABLE IF EXISTS t; DROP TABLE IF EXISTS u;
CREATE TABLE t(id INTEGER PRIMARY KEY, k TEXT, v REAL, b BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 120)
INSERT INTO t SELECT i, printf('key%05d', (i*7919)%1000), i*1.25, zeroblob(i%17) FROM n;
CREATE INDEX tk ON t(k);
CREATE TABLE u AS SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k;
SELECT count(*), min(k), max(k), round(avg(v),3) FROM t;
SELECT t.id, u.n, u.s FROM t JOIN u ON t.k = u.k WHERE t.id % 10 = 3 ORDER BY u.s DESC, t.id LIMIT 10;
UPDATE t SET v = v * 2 WHERE k LIKE 'key000%';
DELETE FROM t WHERE id BETWEEN 20 AND 40;
SELECT group_concat(k, ',') FROM (SELECT k FROM t ORDER BY k DESC LIMIT 8);
SELECT id, sum(v) OVER (ORDER BY id ROWS 3 PRECEDING) FROM t ORDER BY id LIMIT 12;
SELECT json_extract('{"a":[1,2,{"b":"x"}]}', '$.a[2].b'), json_group_array(id) FROM t WHERE id < 12;
SELECT hex(substr(b,1,4)), typeof(v), upper(k), length(k), k GLOB 'key?0*' FROM t WHERE id > 110;
BEGIN; INSERT INTO u SELECT k||'x', n, s FROM u; ROLLBACK;
SELECT count(*), total(s) FROM u;
PRAGMA integrity_check;
