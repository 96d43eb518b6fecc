// The short way of a long text in C, where the package is compiled (setup.py). `short_way` and `local_link` do the same in
// steps of Python, and after a rest each of those finds its objects in no cache.
//
//     take ─► header, launch of the graph ─► turn: nap, look ─► note ─► call back
//       ╰ anything out of the ordinary: nothing was done, or `give_up`, and Python goes on
//
// A few texts are under way at a time, launched and awaited by the thread that drives. While `is_quiet`, nothing else is
// under way or waits; whoever changes that says so first, and holds the interpreter, as everything here does but the nap.

#define NO_IMPORT_ARRAY
#include "native_way.h"

#include <time.h>

static const double LATE_WEIGHT = 0.125, EARLY_WEIGHT = 0.5;  // as in `waiting`

static int64_t now_on(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

// As `waiting` tells sizes apart: quarters of an octave.
int bucket_of(Py_ssize_t n_bytes) {
    if (n_bytes <= 0) return 0;
    const int octave = 64 - __builtin_clzll((unsigned long long)n_bytes);
    return (octave << 2 | (int)(((unsigned long long)n_bytes << 2 >> (octave - 1)) & 3)) & 0xff;
}

static PyObject** member(PyObject* object, Py_ssize_t at) { return (PyObject**)((char*)object + at); }

static int is_same(PyObject* one, PyObject* other) {
    if (one == other) return 1;
    return PyUnicode_CheckExact(one) && PyUnicode_CheckExact(other) && PyUnicode_Compare(one, other) == 0;
}

// The kind of content of UTF-8, as `costs.content_kind` has it.
PyObject* kind_of(const Way* way, const uint8_t* text, Py_ssize_t n_bytes) {
    const Py_ssize_t n = n_bytes < SAMPLE_BYTES ? n_bytes : SAMPLE_BYTES;
    Py_ssize_t n_chars = 0, first = 0;
    uint8_t any = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        any |= text[i];
        if ((text[i] & 0xc0) == 0x80) continue;
        n_chars++;
        first = i;
    }
    if (any < 0x80) return way->ascii;
    // A character that the sample cuts is none.
    const int length = text[first] < 0xc0 ? 1 : text[first] < 0xe0 ? 2 : text[first] < 0xf0 ? 3 : 4;
    if (first + length > n) n_chars--;
    return 2 * n > 3 * n_chars ? way->wide : way->mixed;
}

static const Finding* find(const Way* way, PyObject* owner, const Py_buffer* text, PyObject* const* asked) {
    PyObject* kind = NULL;
    for (int i = 0; i < way->n_findings; i++) {
        const Finding* found = &way->findings[i];
        int fits = found->owner == owner && found->min_bytes <= text->len && text->len <= found->max_bytes;
        for (int k = 0; fits && k < N_ASKED; k++) fits = is_same(found->asked[k], asked[k]);
        if (!fits) continue;
        if (PyUnicode_GET_LENGTH(found->kind) == 0) return found;
        if (kind == NULL) kind = kind_of(way, text->buf, text->len);
        if (is_same(found->kind, kind)) return found;
    }
    return NULL;
}

// Of a slot whose model is gone: nothing of the link is kept.
void let_go(Place* place) {
    if (place->is_closed) Py_CLEAR(place->link);
}

void clear_flight(Flight* flight) {
    if (flight->place != NULL) let_go(flight->place);
    Py_XDECREF(flight->place);
    Py_XDECREF(flight->call);
    Py_XDECREF(flight->text);
    Py_XDECREF(flight->lease);
    Py_XDECREF(flight->on_done);
    Py_XDECREF(flight->ordinary);
}

// The oldest one, out of those under way: whoever takes it answers it.
Flight pop_flight(Way* way) {
    const Flight oldest = way->flights[0];
    memmove(way->flights, way->flights + 1, sizeof(Flight) * --way->n_flying);
    return oldest;
}

// Whether a text has this lease, unused, and all of its memory; a slice may lie anywhere in the slot.
static int is_whole(const Way* way, PyObject* text, PyObject* lease) {
    if (Py_TYPE(text) != way->text_type || Py_TYPE(lease) != way->lease_type) return 0;
    PyObject *memory = *member(text, way->memory_at), *unused = *member(lease, way->unused_at);
    if (*member(text, way->lease_at) != lease || memory == NULL || !PyMemoryView_Check(memory)) return 0;
    PyArrayObject* array = (PyArrayObject*)text;
    const Py_buffer* all = PyMemoryView_GET_BUFFER(memory);
    if (all->buf != PyArray_DATA(array) || all->len != PyArray_NBYTES(array)) return 0;
    return unused != NULL && PyList_CheckExact(unused) && PyList_GET_SIZE(unused) == 1;
}

// take(text, lease, on_done, tokenizer, options, model, route): the call, or None
PyObject* place_take(Place* place, PyObject* const* args, Py_ssize_t n_args) {
    if (n_args != 3 + N_ASKED) return PyErr_Format(PyExc_TypeError, "take() takes %d arguments", 3 + N_ASKED);
    Way* way = place->way;
    PyObject *text = args[0], *lease = args[1];
    if (way == NULL || !way->is_quiet || !is_whole(way, text, lease)) Py_RETURN_NONE;
    PyObject* call = PyObject_CallNoArgs(way->call_type);
    if (call == NULL) return NULL;
    // Making that may have run anything. Until the text is launched, nothing below lets go of the interpreter.
    const Finding* found = NULL;
    if (way->is_quiet && is_whole(way, text, lease))
        found = find(way, place->owner, PyMemoryView_GET_BUFFER(*member(text, way->memory_at)), args + 3);
    const Py_ssize_t n_bytes = PyArray_NBYTES((PyArrayObject*)text);
    const int bucket = bucket_of(n_bytes);
    Size* size = &way->sizes[bucket % N_SIZES];
    const int64_t begin_ns = now_on(CLOCK_MONOTONIC);
    if (found == NULL || begin_ns >= found->until_ns || way->n_flying == MAX_FLIGHTS ||
        way->thread != PyThread_get_thread_ident() || place->link == NULL || n_bytes < place->min_bytes ||
        n_bytes > place->capacity || size->bucket != bucket || size->owner != place->owner ||
        size->predicted_ns > LONG_NAP_NS || *member(lease, way->place_at) != (PyObject*)place || place->is_closed) {
        Py_DECREF(call);
        Py_RETURN_NONE;
    }
    if (PyList_SetSlice(*member(lease, way->unused_at), 0, 1, NULL) < 0) {
        Py_DECREF(call);
        return NULL;
    }
    const int is_measured = ++way->n_taken % MEASURED == 0;
    const int64_t cpu_ns = is_measured ? now_on(CLOCK_THREAD_CPUTIME_ID) : 0;
    Flight* flight = &way->flights[way->n_flying];
    flight->is_alone = way->n_flying++ == 0;
    flight->place = (Place*)Py_NewRef(place);
    flight->call = Py_NewRef(call);
    flight->text = Py_NewRef(text);
    flight->lease = Py_NewRef(lease);
    flight->on_done = Py_NewRef(args[2]);
    flight->ordinary = Py_NewRef(found->ordinary);
    flight->n_bytes = n_bytes;
    flight->began_ns = begin_ns;
    flight->bucket = bucket;
    flight->due_ns = begin_ns + (int64_t)size->predicted_ns;
    place->starts[0] = 0;
    place->starts[1] = (uint32_t)n_bytes;
    Header* header = place->header;
    header->epoch = ++place->counts[0];
    header->n_bytes = (uint32_t)n_bytes;
    header->n_documents = 1;
    header->flags = FLAG_IDS;
    header->reserved = 0;
    atomic_thread_fence(memory_order_release);
    const int status = place->launch(place->graphs[++place->counts[1] & 1], place->stream);
    if (is_measured) way->launch_cpu_ns = now_on(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
    if (status != 0) {
        way->is_quiet = 0;
        PyObject* told = PyObject_CallFunction(way->on_failed_launch, "i", status);
        if (told == NULL) PyErr_WriteUnraisable(way->on_failed_launch);
        Py_XDECREF(told);
    }
    return call;
}

// The ids of a text as its caller gets them: a view that keeps the slot, or for a few of them a copy.
static PyObject* ids_of(Way* way, PyObject* id_bytes, PyObject* lease, uint32_t n_tokens) {
    PyArrayObject* all = (PyArrayObject*)id_bytes;
    npy_intp n_bytes = (npy_intp)n_tokens * 4;
    if (n_bytes < way->hold_from) return PyBytes_FromStringAndSize(PyArray_BYTES(all), n_bytes);
    PyObject* ids = PyArray_NewFromDescr(way->ids_type, PyArray_DescrFromType(NPY_UINT8), 1, &n_bytes, NULL,
                                         PyArray_DATA(all), NPY_ARRAY_C_CONTIGUOUS, NULL);
    if (ids == NULL) return NULL;
    if (PyArray_SetBaseObject((PyArrayObject*)ids, Py_NewRef((PyObject*)all)) < 0) {
        Py_DECREF(ids);
        return NULL;
    }
    Py_XSETREF(*member(ids, way->hold_at), Py_NewRef(lease));
    return ids;
}

static PyObject* result_of(Way* way, PyObject* ids, uint32_t n_tokens) {
    PyObject *all_ids = PyList_New(1), *counts = PyList_New(1), *count = PyLong_FromUnsignedLong(n_tokens),
             *result = NULL;
    if (all_ids != NULL && counts != NULL && count != NULL) {
        PyList_SET_ITEM(all_ids, 0, Py_NewRef(ids));
        PyList_SET_ITEM(counts, 0, Py_NewRef(count));
        PyObject* fields[] = {all_ids, counts, way->route};
        result = PyObject_Vectorcall(way->result_type, fields, 3, NULL);
    }
    Py_XDECREF(all_ids);
    Py_XDECREF(counts);
    Py_XDECREF(count);
    return result;
}

// An error of a callback is told to whoever logs it; one that ends the program goes on. Whether it was told.
static int tell_failure(Way* way) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return 0;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL) PyException_SetTraceback(value, trace);
    PyObject* told = PyObject_CallOneArg(way->on_failed_callback, value);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(told);
    return told != NULL;
}

// Whether a flight is the oldest one still. Names of flights: one thread launches, one after the other.
static int is_oldest(const Way* way, int64_t began_ns) {
    return way->n_flying > 0 && way->flights[0].began_ns == began_ns;
}

// Nap and look until the oldest text is answered: 1 = it is, or somebody else has it; 0 = it is not; -1 = an error.
static int await(Way* way, int64_t left_ns, int n_looks, int* was_late, int* has_napped) {
    const Flight* flight = &way->flights[0];
    const Completion* completion = flight->place->completion;
    const uint64_t epoch = flight->place->counts[0];
    const int64_t began_ns = flight->began_ns, step_ns = (flight->due_ns - began_ns) / LONG_STEPS;
    for (int i = 0; i < n_looks; i++, left_ns = step_ns) {
        if (left_ns > 0) {
            const struct timespec nap = {left_ns / 1000000000, left_ns % 1000000000};
            *has_napped = 1;
            Py_BEGIN_ALLOW_THREADS;
            nanosleep(&nap, NULL);
            Py_END_ALLOW_THREADS;
            if (!is_oldest(way, began_ns)) return 1;
        }
        if (atomic_load_explicit(&completion->epoch, memory_order_acquire) == epoch) return 1;
        if (*has_napped && PyErr_CheckSignals() < 0) return -1;
        if (!is_oldest(way, began_ns)) return 1;
        *was_late = *has_napped;
    }
    return 0;
}

// What is predicted after a replay that took so long, as `Place.learn` has it: after one nap in `LONG_LEARNS` that was long
// enough, and each that was not. `due` is what was predicted when it was launched.
double learned(double known, double due, double took, int was_late, int has_napped, int* n_in_row) {
    if (has_napped && !was_late) {
        if (++*n_in_row % LONG_LEARNS != 0) return known;
        const int doubles = *n_in_row / LONG_ROW < LONG_DOUBLES ? *n_in_row / LONG_ROW : LONG_DOUBLES;
        took = due * (1 - (double)LONG_LEARNS / LONG_EARLY_PARTS * (1 << doubles));
    } else {
        if (!has_napped && took >= due) return known;  // whoever comes late learns nothing about when it ended
        *n_in_row = 0;
        if (has_napped && took > LONG_LATE * due) took = LONG_LATE * due;
    }
    return known + (took > known ? LATE_WEIGHT : EARLY_WEIGHT) * (took - known);
}

static void learn(Way* way, const Flight* flight, int64_t now_ns, int was_late, int has_napped) {
    Size* size = &way->sizes[flight->bucket % N_SIZES];
    if (size->bucket != flight->bucket || size->owner != flight->place->owner) return;  // it was taken for another one
    const double due = (double)(flight->due_ns - flight->began_ns), took = (double)(now_ns - flight->began_ns);
    size->predicted_ns = learned(size->predicted_ns, due, took, was_late, has_napped, &size->n_in_row);
}

// Whether notes were counted without an error.
static int count_noted(Way* way) {
    PyObject* counted = PyObject_CallNoArgs(way->on_full);
    Py_XDECREF(counted);
    return counted != NULL;
}

// turn(seconds): whether the oldest text was answered; None if it is not due yet. If it is not answered, and there is
// one, all are to be taken with `give_up`.
PyObject* way_turn(Way* way, PyObject* seconds) {
    if (way->n_flying == 0 || !way->is_quiet || way->is_turning) Py_RETURN_FALSE;
    const double timeout_ns = PyFloat_AsDouble(seconds) * 1e9;
    if (timeout_ns < 0 && PyErr_Occurred()) return NULL;
    if (way->n_noted == MAX_NOTED && !count_noted(way)) return NULL;
    if (way->n_flying == 0 || !way->is_quiet) Py_RETURN_FALSE;
    const int is_measured = way->n_taken % MEASURED == 0;
    const int64_t cpu_ns = is_measured ? now_on(CLOCK_THREAD_CPUTIME_ID) : 0;
    const Flight* flight = &way->flights[0];
    const int64_t began_ns = flight->began_ns, left_ns = flight->due_ns - now_on(CLOCK_MONOTONIC);
    if (left_ns > LONG_NAP_NS) Py_RETURN_FALSE;
    const int is_short = timeout_ns < (double)left_ns;
    int was_late = 0, has_napped = 0;
    way->is_turning = 1;
    const int is_answered = is_short ? await(way, timeout_ns > 0 ? (int64_t)timeout_ns : 0, 1, &was_late, &has_napped)
                                     : await(way, left_ns, LONG_STEPS, &was_late, &has_napped);
    way->is_turning = 0;
    if (is_answered < 0) return NULL;
    if (!is_oldest(way, began_ns)) Py_RETURN_TRUE;
    if (is_short && !is_answered && way->is_quiet) Py_RETURN_NONE;
    const Completion* completion = flight->place->completion;
    const uint32_t n_tokens = completion->n_tokens;
    const Py_ssize_t most = PyArray_SIZE((PyArrayObject*)flight->place->id_bytes) / 4;
    if (!is_answered || completion->any_flagged || (Py_ssize_t)n_tokens > most || way->n_noted == MAX_NOTED)
        Py_RETURN_FALSE;
    const int64_t now_ns = now_on(CLOCK_MONOTONIC);
    if (flight->is_alone && way->n_flying == 1) learn(way, flight, now_ns, was_late, has_napped);
    // Whatever a collection of garbage runs meanwhile, these live.
    PyObject *id_bytes = Py_NewRef(flight->place->id_bytes), *lease = Py_NewRef(flight->lease);
    PyObject* ids = ids_of(way, id_bytes, lease, n_tokens);
    PyObject* result = ids == NULL ? NULL : result_of(way, ids, n_tokens);
    Py_XDECREF(ids);
    Py_DECREF(id_bytes);
    Py_DECREF(lease);
    if (result == NULL) return NULL;
    if (!is_oldest(way, began_ns)) {  // it ran something that took the text
        Py_DECREF(result);
        Py_RETURN_TRUE;
    }
    Flight ended = pop_flight(way);
    // Noted before the callback, which may look, or never return here.
    way->n_views += (Py_ssize_t)n_tokens * 4 >= way->hold_from;
    Note* note = &way->noted[way->n_noted++];
    note->owner = Py_NewRef(ended.place->owner);
    note->ordinary = ended.ordinary;
    ended.ordinary = NULL;
    note->n_bytes = ended.n_bytes;
    note->capacity = ended.place->capacity;
    note->n_tokens = n_tokens;
    note->replay_ns = now_ns - ended.began_ns;
    if (is_measured) way->turn_cpu_ns = now_on(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
    PyObject* arguments[] = {result, Py_None};
    PyObject* returned = PyObject_Vectorcall(ended.on_done, arguments, 2, NULL);
    Py_DECREF(result);
    const int goes_on = returned != NULL || tell_failure(way);
    Py_XDECREF(returned);
    clear_flight(&ended);
    if (!goes_on) return NULL;
    if (way->n_noted == MAX_NOTED && !count_noted(way)) return NULL;
    Py_RETURN_TRUE;
}

// give_up(): (place, way, call, text, lease, on_done, ordinary, when it was launched) of the oldest text, or None.
PyObject* way_give_up(Way* way, PyObject* Py_UNUSED(none)) {
    way->is_quiet = 0;
    if (way->n_flying == 0) Py_RETURN_NONE;
    PyObject* given = PyTuple_New(8);
    if (given == NULL) return NULL;
    if (way->n_flying == 0) {  // a collection of garbage ran something that took it
        Py_DECREF(given);
        Py_RETURN_NONE;
    }
    PyObject* began_ns = PyLong_FromLongLong(way->flights[0].began_ns);
    if (began_ns == NULL) {
        Py_DECREF(given);
        return NULL;
    }
    const Flight flight = pop_flight(way);
    PyTuple_SET_ITEM(given, 0, Py_NewRef(flight.place->link == NULL ? Py_None : flight.place->link));
    PyTuple_SET_ITEM(given, 1, Py_NewRef(flight.place->owner));
    PyTuple_SET_ITEM(given, 2, flight.call);
    PyTuple_SET_ITEM(given, 3, flight.text);
    PyTuple_SET_ITEM(given, 4, flight.lease);
    PyTuple_SET_ITEM(given, 5, flight.on_done);
    PyTuple_SET_ITEM(given, 6, flight.ordinary);
    PyTuple_SET_ITEM(given, 7, began_ns);
    let_go(flight.place);
    Py_DECREF(flight.place);
    return given;
}
