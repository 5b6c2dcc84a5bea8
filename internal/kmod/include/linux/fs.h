// The names of types that functions about files have.
#ifndef _LINUX_FS_H
#define _LINUX_FS_H

#include <linux/kernel.h>
#include <linux/types.h>

struct file;
struct inode;
struct dentry;
struct super_block;

#endif
