// What a lease of a slot ends with. See `native_way.c`.

#define NO_IMPORT_ARRAY
#include "native_way.h"

// Ends with a lease, and gives its slot back.
typedef struct {
    PyObject_HEAD Way* way;
    PyObject *give_back, *append, *entry;
} Ending;

static int ending_init(Ending* ending, PyObject* args, PyObject* Py_UNUSED(named)) {
    PyObject *way, *give_back, *append, *entry;
    if (!PyArg_ParseTuple(args, "O!OOO", &way_type, &way, &give_back, &append, &entry)) return -1;
    if (ending->way != NULL) {
        PyErr_SetString(PyExc_TypeError, "made already");
        return -1;
    }
    ending->way = (Way*)Py_NewRef(way);
    ending->give_back = Py_NewRef(give_back);
    ending->append = Py_NewRef(append);
    ending->entry = Py_NewRef(entry);
    return 0;
}

static int ending_traverse(Ending* ending, visitproc visit, void* arg) {
    Py_VISIT(ending->way);
    Py_VISIT(ending->give_back);
    Py_VISIT(ending->append);
    Py_VISIT(ending->entry);
    return 0;
}

static void ending_finalize(Ending* ending) {
    if (ending->way == NULL) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    // While nothing waits for a slot, nobody has to be told.
    PyObject* given = ending->way->is_quiet ? PyObject_CallOneArg(ending->append, ending->entry)
                                            : PyObject_CallNoArgs(ending->give_back);
    if (given == NULL) PyErr_WriteUnraisable((PyObject*)ending);
    Py_XDECREF(given);
    PyErr_Restore(type, value, trace);
}

static int ending_clear(Ending* ending) {
    Py_CLEAR(ending->give_back);
    Py_CLEAR(ending->append);
    Py_CLEAR(ending->entry);
    return 0;
}

static void ending_dealloc(Ending* ending) {
    if (PyObject_CallFinalizerFromDealloc((PyObject*)ending) < 0) return;
    PyObject_GC_UnTrack(ending);
    ending_clear(ending);
    Py_CLEAR(ending->way);
    Py_TYPE(ending)->tp_free((PyObject*)ending);
}

PyTypeObject ending_type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dispatcher.gpu.native_way.NativeEnding",
    .tp_basicsize = sizeof(Ending),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)ending_init,
    .tp_finalize = (destructor)ending_finalize,
    .tp_dealloc = (destructor)ending_dealloc,
    .tp_traverse = (traverseproc)ending_traverse,
    .tp_clear = (inquiry)ending_clear,
};
