// Lists whose elements hold their places themselves.
#ifndef _LINUX_LIST_H
#define _LINUX_LIST_H

#include <linux/container_of.h>
#include <linux/types.h>

#define LIST_HEAD_INIT(name) {&(name), &(name)}
#define LIST_HEAD(name) struct list_head name = LIST_HEAD_INIT(name)

static inline void INIT_LIST_HEAD(struct list_head *l) { l->next = l->prev = l; }
static inline void __list_put(struct list_head *e, struct list_head *before, struct list_head *behind)
{
	behind->prev = e;
	e->next = behind;
	e->prev = before;
	before->next = e;
}
static inline void list_add(struct list_head *e, struct list_head *l) { __list_put(e, l, l->next); }
static inline void list_add_tail(struct list_head *e, struct list_head *l) { __list_put(e, l->prev, l); }
static inline void list_del(struct list_head *e)
{
	e->next->prev = e->prev;
	e->prev->next = e->next;
	e->next = e->prev = NULL;
}
static inline void list_del_init(struct list_head *e)
{
	list_del(e);
	INIT_LIST_HEAD(e);
}
static inline int list_empty(const struct list_head *l) { return l->next == l; }

#define list_entry container_of
#define list_first_entry(l, type, member) list_entry((l)->next, type, member)
#define list_last_entry(l, type, member) list_entry((l)->prev, type, member)
#define list_next_entry(e, member) list_entry((e)->member.next, typeof(*(e)), member)
#define list_for_each(e, l) for ((e) = (l)->next; (e) != (l); (e) = (e)->next)
#define list_for_each_safe(e, n, l) for ((e) = (l)->next, (n) = (e)->next; (e) != (l); (e) = (n), (n) = (e)->next)
#define list_for_each_entry(e, l, member) \
	for ((e) = list_first_entry(l, typeof(*(e)), member); &(e)->member != (l); (e) = list_next_entry(e, member))
#define list_for_each_entry_safe(e, n, l, member)                                                    \
	for ((e) = list_first_entry(l, typeof(*(e)), member), (n) = list_next_entry(e, member);      \
	     &(e)->member != (l); (e) = (n), (n) = list_next_entry(n, member))

#endif
