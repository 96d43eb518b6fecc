// CUDA for g++, as far as the kernels use it. The threads of a block are fibers of one host thread: a fiber runs until it has to wait for
// its warp or its block, then the next one runs. Blocks run one after the other in the order of their numbers, which is all that the
// look-back needs. The same input gives the same steps every time.
//
// A warp whose lanes wait at different places is a fault in the kernel, and ends the process with a message.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define SHIM_ASAN 1
#else
#define SHIM_ASAN 0
#endif

#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)

struct uint4 {
    unsigned x, y, z, w;
};
struct Dim3 {
    unsigned x = 0, y = 0, z = 0;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline Dim3 threadIdx, blockIdx;

namespace shim {

constexpr unsigned STACK_BYTES = 256 * 1024;

enum State { RUNS, AT_BARRIER, FINISHED };

struct Fiber {
    ucontext_t context;
    jmp_buf jump;
    bool started = false;
    State state = RUNS;
    std::vector<char> stack = std::vector<char>(STACK_BYTES);
    void* fake_stack = nullptr;
};

struct Warp {
    unsigned arrived = 0, generation = 0;
    unsigned long long slot[2][32];  // two, so that a lane may write while a slower one still reads
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::function<void()> kernel;
    unsigned current = 0, n_threads = 0, arrived = 0, generation = 0, n_finished = 0;
    bool backwards = false;
    ucontext_t host;
    void* host_fake_stack = nullptr;
    const void* host_stack = nullptr;
    size_t host_stack_bytes = 0;
};

inline Block block;

[[noreturn]] inline void fault(const char* what) {
    std::fprintf(stderr, "shim: block %u thread %u: %s\n", blockIdx.x, threadIdx.x, what);
    std::abort();
}

inline void switch_to(unsigned next) {
    Fiber &from = block.fibers[block.current], &to = block.fibers[next];
    block.current = next;
    threadIdx.x = next;
#if SHIM_ASAN
    __sanitizer_start_switch_fiber(&from.fake_stack, to.stack.data(), STACK_BYTES);
    swapcontext(&from.context, &to.context);
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#else
    // ucontext only begins a fiber: its switches are system calls, those of setjmp are not.
    if (_setjmp(from.jump)) return;
    if (to.started) _longjmp(to.jump, 1);
    to.started = true;
    setcontext(&to.context);
#endif
}

inline unsigned neighbour(unsigned index, unsigned size) {
    return block.backwards ? (index + size - 1) % size : (index + 1) % size;
}

// Lets the other lanes of the warp come to the place where this one waits.
inline void yield_to_warp() {
    unsigned first = block.current / 32 * 32;
    unsigned next = first + neighbour(block.current - first, 32);
    if (block.fibers[next].state != RUNS) fault("the lanes of a warp wait at different places");
    switch_to(next);
}

inline void yield_to_block() {
    unsigned next = block.current;
    do {
        next = neighbour(next, block.n_threads);
    } while (block.fibers[next].state != RUNS && next != block.current);
    if (next == block.current) fault("a barrier that not all threads reach");
    switch_to(next);
}

inline void wait_for_warp() {
    Warp& warp = block.warps[block.current / 32];
    unsigned generation = warp.generation;
    if (++warp.arrived == 32) {
        warp.arrived = 0;
        ++warp.generation;
        return;
    }
    while (warp.generation == generation) yield_to_warp();
}

inline void wait_for_block() {
    unsigned generation = block.generation;
    if (++block.arrived == block.n_threads) {
        block.arrived = 0;
        ++block.generation;
        for (Fiber& fiber : block.fibers) fiber.state = RUNS;
        return;
    }
    block.fibers[block.current].state = AT_BARRIER;
    while (block.generation == generation) yield_to_block();
}

// Gives the values of all lanes to each of them.
inline const unsigned long long* exchange(unsigned mask, unsigned long long value) {
    if (mask != 0xffffffffu) fault("a warp intrinsic without the full mask");
    Warp& warp = block.warps[block.current / 32];
    unsigned long long* slot = warp.slot[warp.generation & 1];
    slot[block.current % 32] = value;
    wait_for_warp();
    return slot;
}

inline void run_fiber() {
#if SHIM_ASAN
    __sanitizer_finish_switch_fiber(
        nullptr, block.current == (block.backwards ? block.n_threads - 1 : 0) ? &block.host_stack : nullptr,
        block.current == (block.backwards ? block.n_threads - 1 : 0) ? &block.host_stack_bytes : nullptr);
#endif
    block.kernel();
    Fiber& self = block.fibers[block.current];
    self.state = FINISHED;
    if (++block.n_finished < block.n_threads) {
        unsigned next = block.current;
        do {
            next = neighbour(next, block.n_threads);
        } while (block.fibers[next].state == FINISHED);
        if (block.fibers[next].state == AT_BARRIER) fault("a thread ended while others wait at a barrier");
        switch_to(next);
    }
#if SHIM_ASAN
    __sanitizer_start_switch_fiber(nullptr, block.host_stack, block.host_stack_bytes);
#endif
    setcontext(&block.host);
}

inline void run_block(unsigned index, unsigned n_threads, bool backwards, std::function<void()> kernel) {
    block.fibers.resize(n_threads);
    block.warps.assign(n_threads / 32, Warp{});
    block.kernel = std::move(kernel);
    block.n_threads = n_threads;
    block.arrived = block.generation = block.n_finished = 0;
    block.backwards = backwards;
    blockIdx.x = index;
    for (Fiber& fiber : block.fibers) {
        fiber.started = false;
        fiber.state = RUNS;
        fiber.fake_stack = nullptr;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = STACK_BYTES;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, run_fiber, 0);
    }
    block.current = backwards ? n_threads - 1 : 0;
    threadIdx.x = block.current;
    block.fibers[block.current].started = true;
#if SHIM_ASAN
    __sanitizer_start_switch_fiber(&block.host_fake_stack, block.fibers[block.current].stack.data(), STACK_BYTES);
#endif
    swapcontext(&block.host, &block.fibers[block.current].context);
#if SHIM_ASAN
    __sanitizer_finish_switch_fiber(block.host_fake_stack, nullptr, nullptr);
#endif
}

}  // namespace shim

inline void __syncthreads() { shim::wait_for_block(); }
inline void __syncwarp() { shim::wait_for_warp(); }
inline void __threadfence() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}

inline unsigned __ballot_sync(unsigned mask, bool value) {
    const unsigned long long* all = shim::exchange(mask, value);
    unsigned result = 0;
    for (unsigned i = 0; i < 32; ++i) result |= static_cast<unsigned>(all[i]) << i;
    return result;
}
inline int __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline unsigned __shfl_sync(unsigned mask, unsigned value, unsigned lane) {
    return static_cast<unsigned>(shim::exchange(mask, value)[lane & 31u]);
}
inline unsigned __shfl_up_sync(unsigned mask, unsigned value, unsigned delta) {
    unsigned lane = threadIdx.x & 31u;
    return static_cast<unsigned>(shim::exchange(mask, value)[lane >= delta ? lane - delta : lane]);
}
inline unsigned __shfl_down_sync(unsigned mask, unsigned value, unsigned delta) {
    unsigned lane = threadIdx.x & 31u;
    return static_cast<unsigned>(shim::exchange(mask, value)[lane + delta < 32 ? lane + delta : lane]);
}
inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, unsigned bits) {
    unsigned lane = threadIdx.x & 31u;
    return static_cast<unsigned>(shim::exchange(mask, value)[(lane ^ bits) & 31u]);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
    const unsigned long long* all = shim::exchange(mask, value);
    for (unsigned i = 0; i < 32; ++i) value = all[i] < value ? static_cast<unsigned>(all[i]) : value;
    return value;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
    const unsigned long long* all = shim::exchange(mask, value);
    for (unsigned i = 0; i < 32; ++i) value = all[i] > value ? static_cast<unsigned>(all[i]) : value;
    return value;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
    const unsigned long long* all = shim::exchange(mask, value);
    value = 0;
    for (unsigned i = 0; i < 32; ++i) value += static_cast<unsigned>(all[i]);
    return value;
}

inline unsigned atomicOr(unsigned* at, unsigned bits) {
    unsigned old = *at;
    *at |= bits;
    return old;
}
inline unsigned atomicAnd(unsigned* at, unsigned bits) {
    unsigned old = *at;
    *at &= bits;
    return old;
}
inline unsigned atomicAdd(unsigned* at, unsigned value) {
    unsigned old = *at;
    *at += value;
    return old;
}
inline unsigned atomicInc(unsigned* at, unsigned limit) {
    unsigned old = *at;
    *at = old >= limit ? 0 : old + 1;
    return old;
}
inline unsigned long long atomicOr(unsigned long long* at, unsigned long long bits) {
    unsigned long long old = *at;
    *at |= bits;
    return old;
}
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
    unsigned long long old = *at;
    *at += value;
    return old;
}

template <class T>
inline T __ldg(const T* at) {
    return *at;
}
inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline int __ffs(unsigned word) { return __builtin_ffs(static_cast<int>(word)); }
inline int __ffsll(unsigned long long word) { return __builtin_ffsll(static_cast<long long>(word)); }
inline int __clzll(unsigned long long word) { return word ? __builtin_clzll(word) : 64; }
inline int __clz(unsigned word) { return word ? __builtin_clz(word) : 32; }
inline unsigned __brev(unsigned word) {
    unsigned result = 0;
    for (unsigned i = 0; i < 32; ++i) result |= (word >> i & 1u) << (31 - i);
    return result;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31u));
}
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
