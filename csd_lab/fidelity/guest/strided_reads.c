/*
 * Reads that wait for each other, each a fixed number of bytes behind the one before, round and round in ever more
 * memory: what LMBench's lat_mem_rd times. They run on a bare core without a system; a mark is
 * `movz xzr, #0xC5D0 + n`, and those of a walk are BEGIN and STRIDED_READ.
 */
typedef unsigned long u64;

#define MARK(n) __asm__ volatile("movz xzr, %0" ::"i"(0xC5D0 + (n)) : "memory")

enum { START = 15, BEGIN = 0, STRIDED_READ = 1, STOP = 14 };

static char *const SOURCE = (char *)0x48000000;

/* Have each place hold the address of the next, and the last that of the first. */
static void *link_places(u64 bytes)
{
    for (u64 at = 0; at < bytes; at += STRIDE_BYTES)
        *(volatile u64 *)(SOURCE + at) = (u64)(SOURCE + (at + STRIDE_BYTES) % bytes);
    return SOURCE;
}

/* Follow the addresses; a hundred reads for each branch. */
static void *walk(void *place, u64 hundreds)
{
    while (hundreds--)
        __asm__ volatile(".rept 100\n ldr %0, [%0]\n .endr" : "+r"(place) : : "memory");
    return place;
}

/* Power the machine off at the end. */
void begin(void)
{
    MARK(START);
    for (u64 kibibytes = LEAST_KIBIBYTES; kibibytes <= MOST_KIBIBYTES; kibibytes *= 2) {
        void *place = walk(link_places(kibibytes << 10), TIMES / 100);
        MARK(BEGIN);
        walk(place, TIMES / 100);
        MARK(STRIDED_READ);
    }
    MARK(STOP);
    __asm__ volatile("movz w0, #8\n movk w0, #0x8400, lsl #16\n hvc #0");
}

__asm__(".globl _start\n _start: mov x0, #0x47000000\n mov sp, x0\n b begin\n");
