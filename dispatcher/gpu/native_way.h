// What the sources of `native_way` share.

#pragma once

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL sidetok_array_api
#include <Python.h>
// After it.
#include <numpy/arrayobject.h>
#include <stdatomic.h>
#include <stdint.h>
#include <structmember.h>

enum {
    // As in `local_link` and `waiting`; a test compares them.
    LONG_NAP_NS = 250000,
    LONG_STEPS = 8,
    LONG_LEARNS = 4,
    LONG_EARLY_PARTS = 128,
    LONG_ROW = 16,
    LONG_DOUBLES = 4,
    LONG_LATE = 2,
    // As in `account` and `short_way`.
    MEASURED = 16,
    MAX_NOTED = 32,
    MAX_FINDINGS = 4,
    MAX_FLIGHTS = 4,
    N_SIZES = 16,
    N_ASKED = 4,
    FLAG_IDS = 1,
    SAMPLE_BYTES = 512,
};

// As `gpu_core.layout` has them.
typedef struct {
    uint64_t epoch;
    uint32_t n_bytes, n_documents, flags, reserved;
} Header;
typedef struct {
    _Atomic uint64_t epoch;
    uint32_t n_tokens, any_flagged;
} Completion;

typedef int (*LaunchGraph)(void* graph, void* stream);

typedef struct Way Way;

// A slot, and what launches its replay: see `gpu_core.execution.DirectLaunch`.
typedef struct {
    PyObject_HEAD Way* way;
    PyObject* owner;     // the `ShortWay` whose texts lie here
    PyObject* link;      // what the link calls it, for `give_up`
    int is_closed;       // its model is gone
    PyObject* id_bytes;  // all ids of the slot
    LaunchGraph launch;
    void *graphs[2], *stream;
    Header* header;
    Completion* completion;
    uint32_t* starts;
    uint64_t* counts;  // the last epoch, and how many replays fetched their text
    Py_ssize_t min_bytes, capacity;
} Place;

// How long replays of texts of about one size take. `bucket` 0: not known.
typedef struct {
    PyObject* owner;
    int bucket, n_in_row;
    double predicted_ns;
} Size;

typedef struct {
    PyObject *owner, *ordinary, *kind, *asked[N_ASKED];
    Py_ssize_t min_bytes, max_bytes;
    int64_t until_ns;
} Finding;

typedef struct {
    PyObject *owner, *ordinary;
    Py_ssize_t n_bytes, capacity;
    int64_t n_tokens, replay_ns;
} Note;

typedef struct {
    Place* place;
    PyObject *call, *text, *lease, *on_done, *ordinary;
    Py_ssize_t n_bytes;
    int64_t began_ns, due_ns;
    int bucket;
    int is_alone;  // nothing was under way when it was launched
} Flight;

// Of one engine.
struct Way {
    PyObject_HEAD char is_quiet, is_turning;
    int n_findings, n_noted, n_flying;
    unsigned long thread;
    Flight flights[MAX_FLIGHTS];  // the oldest first
    uint64_t n_taken;
    Finding findings[MAX_FINDINGS];
    Size sizes[N_SIZES];
    Note noted[MAX_NOTED];
    long long launch_cpu_ns, turn_cpu_ns;
    unsigned long long n_views;
    Py_ssize_t hold_from;
    PyTypeObject *text_type, *ids_type, *lease_type;
    Py_ssize_t lease_at, memory_at, unused_at, place_at, hold_at;
    PyObject *call_type, *result_type, *ascii, *mixed, *wide, *route, *on_failed_launch, *on_failed_callback, *on_full;
};

extern PyTypeObject way_type, ending_type;

int bucket_of(Py_ssize_t n_bytes);
PyObject* kind_of(const Way* way, const uint8_t* text, Py_ssize_t n_bytes);
void let_go(Place* place);
void clear_flight(Flight* flight);
Flight pop_flight(Way* way);
double learned(double known, double due, double took, int was_late, int has_napped, int* n_in_row);
PyObject* place_take(Place* place, PyObject* const* args, Py_ssize_t n_args);
PyObject* way_turn(Way* way, PyObject* seconds);
PyObject* way_give_up(Way* way, PyObject* none);
