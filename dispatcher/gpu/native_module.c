// The module `native_way`: its types, and what is set up while nothing is under way. See `native_way.c`.

#include "native_way.h"

static void clear_finding(Finding* finding) {
    Finding old = *finding;
    memset(finding, 0, sizeof *finding);
    Py_XDECREF(old.owner);
    Py_XDECREF(old.ordinary);
    Py_XDECREF(old.kind);
    for (int k = 0; k < N_ASKED; k++) Py_XDECREF(old.asked[k]);
}

static void clear_note(Note* note) {
    Note old = *note;
    memset(note, 0, sizeof *note);
    Py_XDECREF(old.owner);
    Py_XDECREF(old.ordinary);
}

// Forget the findings of an owner, or one kind of them. Those that stay keep their order.
static void drop(Way* way, PyObject* owner, PyObject* kind) {
    Finding dropped[MAX_FINDINGS];
    int n_dropped = 0, n_left = 0;
    for (int i = 0; i < way->n_findings; i++) {
        Finding* finding = &way->findings[i];
        const int goes = finding->owner == owner && (kind == NULL || PyUnicode_Compare(finding->kind, kind) == 0);
        if (goes)
            dropped[n_dropped++] = *finding;
        else
            way->findings[n_left++] = *finding;
    }
    way->n_findings = n_left;
    // Last: what ends with them may look here.
    for (int i = 0; i < n_dropped; i++) clear_finding(&dropped[i]);
}

static PyObject* way_open(Way* way, PyObject* args) {
    Finding new = {0};
    long long until_ns;
    if (!PyArg_ParseTuple(args, "OO(OOOO)UnnL", &new.owner, &new.ordinary, &new.asked[0], &new.asked[1], &new.asked[2],
                          &new.asked[3], &new.kind, &new.min_bytes, &new.max_bytes, &until_ns))
        return NULL;
    new.until_ns = until_ns;
    drop(way, new.owner, new.kind);
    if (way->n_findings == MAX_FINDINGS) {
        Finding oldest = way->findings[0];
        memmove(way->findings, way->findings + 1, sizeof(Finding) * --way->n_findings);
        clear_finding(&oldest);
    }
    if (way->n_findings == MAX_FINDINGS) Py_RETURN_NONE;  // what ended with the oldest one opened another
    Py_INCREF(new.owner);
    Py_INCREF(new.ordinary);
    Py_INCREF(new.kind);
    for (int k = 0; k < N_ASKED; k++) Py_INCREF(new.asked[k]);
    way->findings[way->n_findings++] = new;
    Py_RETURN_NONE;
}

static PyObject* way_close(Way* way, PyObject* owner) {
    drop(way, owner, NULL);
    Py_RETURN_NONE;
}

// The same, and how long its replays take.
static PyObject* way_forget(Way* way, PyObject* owner) {
    for (int i = 0; i < N_SIZES; i++) {
        Size* size = &way->sizes[i];
        if (size->owner != owner) continue;
        size->bucket = 0;
        Py_CLEAR(size->owner);
    }
    return way_close(way, owner);
}

static PyObject* way_calm(Way* way, PyObject* Py_UNUSED(none)) {
    way->thread = PyThread_get_thread_ident();
    way->is_quiet = 1;
    Py_RETURN_NONE;
}

static PyObject* way_expect(Way* way, PyObject* args) {
    PyObject* owner;
    Py_ssize_t n_bytes;
    double predicted_ns;
    if (!PyArg_ParseTuple(args, "Ond", &owner, &n_bytes, &predicted_ns)) return NULL;
    const int bucket = bucket_of(n_bytes);
    Size* size = &way->sizes[bucket % N_SIZES];
    // What is known here is learned here.
    if (predicted_ns > 0 && (size->owner != owner || size->bucket != bucket)) {
        PyObject* old = size->owner;
        *size = (Size){Py_NewRef(owner), bucket, 0, predicted_ns};
        Py_XDECREF(old);
    }
    Py_RETURN_NONE;
}

static PyObject* way_drain(Way* way, PyObject* Py_UNUSED(none)) {
    PyObject* all = PyList_New(0);
    while (all != NULL && way->n_noted > 0) {
        Note note = way->noted[--way->n_noted];
        PyObject* one = Py_BuildValue("(NNnnLL)", note.owner, note.ordinary, note.n_bytes, note.capacity,
                                      (long long)note.n_tokens, (long long)note.replay_ns);
        if (one == NULL || PyList_Append(all, one) < 0) Py_CLEAR(all);
        Py_XDECREF(one);
    }
    return all;
}

static PyObject* way_kind_of(Way* way, PyObject* text) {
    Py_buffer bytes;
    if (way->ascii == NULL) return PyErr_Format(PyExc_TypeError, "not made yet");
    if (PyObject_GetBuffer(text, &bytes, PyBUF_SIMPLE) < 0) return NULL;
    PyObject* kind = Py_NewRef(kind_of(way, bytes.buf, bytes.len));
    PyBuffer_Release(&bytes);
    return kind;
}

static PyObject* way_began_ns(Way* way, void* Py_UNUSED(none)) {
    return PyLong_FromLongLong(way->n_flying > 0 ? way->flights[0].began_ns : 0);
}

// Where a slot of a class lies in its objects; -1 if it has none of that name.
static Py_ssize_t offset_of(PyObject* type, const char* name) {
    PyObject* found = PyObject_GetAttrString(type, name);
    if (found == NULL) return -1;
    Py_ssize_t at = -1;
    if (Py_IS_TYPE(found, &PyMemberDescr_Type))
        at = ((PyMemberDescrObject*)found)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%s is no slot", name);
    Py_DECREF(found);
    return at;
}

static int way_init(Way* way, PyObject* args, PyObject* named) {
    static char* names[] = {"text_type", "ids_type",  "lease_type",       "call_type",          "result_type", "kinds",
                            "route",     "hold_from", "on_failed_launch", "on_failed_callback", "on_full",     NULL};
    PyObject *text, *ids, *lease, *call, *result, *ascii, *mixed, *wide, *route, *on_launch, *on_callback, *on_full;
    if (way->text_type != NULL) {
        PyErr_SetString(PyExc_TypeError, "made already");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!O!O!OO(UUU)UnOOO:NativeWay", names, &PyType_Type, &text,
                                     &PyType_Type, &ids, &PyType_Type, &lease, &call, &result, &ascii, &mixed, &wide,
                                     &route, &way->hold_from, &on_launch, &on_callback, &on_full))
        return -1;
    if ((way->lease_at = offset_of(text, "lease")) < 0 || (way->memory_at = offset_of(text, "memory")) < 0 ||
        (way->unused_at = offset_of(lease, "unused")) < 0 || (way->place_at = offset_of(lease, "place")) < 0 ||
        (way->hold_at = offset_of(ids, "hold")) < 0)
        return -1;
    way->text_type = (PyTypeObject*)Py_NewRef(text);
    way->ids_type = (PyTypeObject*)Py_NewRef(ids);
    way->lease_type = (PyTypeObject*)Py_NewRef(lease);
    way->call_type = Py_NewRef(call);
    way->result_type = Py_NewRef(result);
    way->ascii = Py_NewRef(ascii);
    way->mixed = Py_NewRef(mixed);
    way->wide = Py_NewRef(wide);
    way->route = Py_NewRef(route);
    way->on_failed_launch = Py_NewRef(on_launch);
    way->on_failed_callback = Py_NewRef(on_callback);
    way->on_full = Py_NewRef(on_full);
    return 0;
}

static int way_traverse(Way* way, visitproc visit, void* arg) {
    for (int i = 0; i < way->n_flying; i++) {
        Py_VISIT(way->flights[i].place);
        Py_VISIT(way->flights[i].call);
        Py_VISIT(way->flights[i].text);
        Py_VISIT(way->flights[i].lease);
        Py_VISIT(way->flights[i].on_done);
        Py_VISIT(way->flights[i].ordinary);
    }
    for (int i = 0; i < way->n_findings; i++) {
        Py_VISIT(way->findings[i].owner);
        Py_VISIT(way->findings[i].ordinary);
        for (int k = 0; k < N_ASKED; k++) Py_VISIT(way->findings[i].asked[k]);
    }
    for (int i = 0; i < way->n_noted; i++) {
        Py_VISIT(way->noted[i].owner);
        Py_VISIT(way->noted[i].ordinary);
    }
    for (int i = 0; i < N_SIZES; i++) Py_VISIT(way->sizes[i].owner);
    Py_VISIT(way->text_type);
    Py_VISIT(way->ids_type);
    Py_VISIT(way->lease_type);
    Py_VISIT(way->call_type);
    Py_VISIT(way->result_type);
    Py_VISIT(way->on_failed_launch);
    Py_VISIT(way->on_failed_callback);
    Py_VISIT(way->on_full);
    return 0;
}

static int way_clear(Way* way) {
    way->is_quiet = 0;
    while (way->n_flying > 0) {
        Flight flight = pop_flight(way);
        clear_flight(&flight);
    }
    while (way->n_findings > 0) clear_finding(&way->findings[--way->n_findings]);
    for (int i = 0; i < N_SIZES; i++) Py_CLEAR(way->sizes[i].owner);
    while (way->n_noted > 0) clear_note(&way->noted[--way->n_noted]);
    Py_CLEAR(way->on_failed_launch);
    Py_CLEAR(way->on_failed_callback);
    Py_CLEAR(way->on_full);
    return 0;
}

static void way_dealloc(Way* way) {
    PyObject_GC_UnTrack(way);
    way_clear(way);
    Py_CLEAR(way->text_type);
    Py_CLEAR(way->ids_type);
    Py_CLEAR(way->lease_type);
    Py_CLEAR(way->call_type);
    Py_CLEAR(way->result_type);
    Py_CLEAR(way->ascii);
    Py_CLEAR(way->mixed);
    Py_CLEAR(way->wide);
    Py_CLEAR(way->route);
    Py_TYPE(way)->tp_free((PyObject*)way);
}

static PyMethodDef way_methods[] = {
    {"turn", (PyCFunction)way_turn, METH_O,
     "Await the oldest text for so many seconds; whether it was answered, None if it is not due."},
    {"give_up", (PyCFunction)way_give_up, METH_NOARGS, "Take the oldest text from here."},
    {"open", (PyCFunction)way_open, METH_VARARGS, "What was found out about a text."},
    {"close", (PyCFunction)way_close, METH_O, "Forget what was found out for a short way."},
    {"forget", (PyCFunction)way_forget, METH_O, "Forget all of a short way."},
    {"calm", (PyCFunction)way_calm, METH_NOARGS, "Nothing else is under way, and the calling thread drives."},
    {"expect", (PyCFunction)way_expect, METH_VARARGS, "How long a replay of so many bytes takes, in ns."},
    {"drain", (PyCFunction)way_drain, METH_NOARGS, "Take what was noted, the last text first."},
    {"kind_of", (PyCFunction)way_kind_of, METH_O, "The kind of content of UTF-8."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef way_members[] = {
    {"is_quiet", T_BOOL, offsetof(Way, is_quiet), 0, "Nothing else is under way or waits."},
    {"n_flying", T_INT, offsetof(Way, n_flying), READONLY, "Texts under way."},
    {"n_findings", T_INT, offsetof(Way, n_findings), READONLY, "What was found out and may still hold."},
    {"n_taken", T_ULONGLONG, offsetof(Way, n_taken), READONLY, "Texts that were launched here."},
    {"n_views", T_ULONGLONG, offsetof(Way, n_views), READONLY, "Texts whose ids were not copied."},
    {"launch_cpu_ns", T_LONGLONG, offsetof(Way, launch_cpu_ns), READONLY, "CPU time of a launch, measured last."},
    {"turn_cpu_ns", T_LONGLONG, offsetof(Way, turn_cpu_ns), READONLY, "CPU time of a turn, measured last."},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef way_computed[] = {
    {"began_ns", (getter)way_began_ns, NULL, "When the oldest text under way was launched, or 0.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
PyTypeObject way_type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dispatcher.gpu.native_way.NativeWay",
    .tp_basicsize = sizeof(Way),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)way_init,
    .tp_dealloc = (destructor)way_dealloc,
    .tp_traverse = (traverseproc)way_traverse,
    .tp_clear = (inquiry)way_clear,
    .tp_methods = way_methods,
    .tp_members = way_members,
    .tp_getset = way_computed,
};

static int place_init(Place* place, PyObject* args, PyObject* Py_UNUSED(named)) {
    PyObject *way, *owner, *link, *ids;
    unsigned long long launch, graphs[2], stream, header, completion, starts, counts;
    if (place->way != NULL) {
        PyErr_SetString(PyExc_TypeError, "made already");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "O!OOO!(K(KK)KKKKKn)n", &way_type, &way, &owner, &link, &PyArray_Type, &ids, &launch,
                          &graphs[0], &graphs[1], &stream, &header, &completion, &starts, &counts, &place->min_bytes,
                          &place->capacity))
        return -1;
    place->launch = (LaunchGraph)launch;
    for (int turn = 0; turn < 2; turn++) place->graphs[turn] = (void*)graphs[turn];
    place->stream = (void*)stream;
    place->header = (Header*)header;
    place->completion = (Completion*)completion;
    place->starts = (uint32_t*)starts;
    place->counts = (uint64_t*)counts;
    place->way = (Way*)Py_NewRef(way);
    place->owner = Py_NewRef(owner);
    place->link = Py_NewRef(link);
    place->id_bytes = Py_NewRef(ids);
    return 0;
}

static PyObject* place_close(Place* place, PyObject* Py_UNUSED(none)) {
    place->is_closed = 1;
    for (int i = 0; place->way != NULL && i < place->way->n_flying; i++)
        if (place->way->flights[i].place == place) Py_RETURN_NONE;  // whoever takes it lets go
    let_go(place);
    Py_RETURN_NONE;
}

static int place_traverse(Place* place, visitproc visit, void* arg) {
    Py_VISIT(place->way);
    Py_VISIT(place->owner);
    Py_VISIT(place->link);
    Py_VISIT(place->id_bytes);
    return 0;
}

// Not `way` and `ids`, which are looked at as long as there is a place; neither is in a circle without `owner`.
static int place_clear(Place* place) {
    Py_CLEAR(place->link);
    Py_CLEAR(place->owner);
    return 0;
}

static void place_dealloc(Place* place) {
    PyObject_GC_UnTrack(place);
    place_clear(place);
    Py_CLEAR(place->way);
    Py_CLEAR(place->id_bytes);
    Py_TYPE(place)->tp_free((PyObject*)place);
}

static PyMethodDef place_methods[] = {
    {"take", (PyCFunction)(void (*)(void))place_take, METH_FASTCALL, "Launch a text; None if Python has to."},
    {"close", (PyCFunction)place_close, METH_NOARGS, "Take no more texts."},
    {NULL, NULL, 0, NULL},
};
static PyTypeObject place_type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dispatcher.gpu.native_way.NativePlace",
    .tp_basicsize = sizeof(Place),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)place_init,
    .tp_dealloc = (destructor)place_dealloc,
    .tp_traverse = (traverseproc)place_traverse,
    .tp_clear = (inquiry)place_clear,
    .tp_methods = place_methods,
};

static PyObject* module_learned(PyObject* Py_UNUSED(module), PyObject* args) {
    double known, due, took;
    int was_late, has_napped, n_in_row;
    if (!PyArg_ParseTuple(args, "dddppi", &known, &due, &took, &was_late, &has_napped, &n_in_row)) return NULL;
    known = learned(known, due, took, was_late, has_napped, &n_in_row);
    return Py_BuildValue("di", known, n_in_row);
}

static PyMethodDef functions[] = {
    {"learned", module_learned, METH_VARARGS, "What is predicted after a replay, and how many naps were long enough."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "dispatcher.gpu.native_way",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit_native_way(void) {
    import_array();
    PyObject* module = PyModule_Create(&definition);
    if (module == NULL || PyModule_AddType(module, &way_type) < 0 || PyModule_AddType(module, &place_type) < 0 ||
        PyModule_AddType(module, &ending_type) < 0 || PyModule_AddIntMacro(module, LONG_NAP_NS) < 0 ||
        PyModule_AddIntMacro(module, LONG_STEPS) < 0 || PyModule_AddIntMacro(module, LONG_LEARNS) < 0 ||
        PyModule_AddIntMacro(module, LONG_EARLY_PARTS) < 0 || PyModule_AddIntMacro(module, LONG_ROW) < 0 ||
        PyModule_AddIntMacro(module, LONG_DOUBLES) < 0 || PyModule_AddIntMacro(module, LONG_LATE) < 0 ||
        PyModule_AddIntMacro(module, MEASURED) < 0 || PyModule_AddIntMacro(module, MAX_NOTED) < 0 ||
        PyModule_AddIntMacro(module, MAX_FLIGHTS) < 0 || PyModule_AddIntMacro(module, FLAG_IDS) < 0 ||
        PyModule_AddIntMacro(module, SAMPLE_BYTES) < 0)
        Py_CLEAR(module);
    return module;
}
