// What the library calls of a driver, for a "GPU" that is this processor: an image is the path of a library.

#include <dlfcn.h>

#include <string>

typedef void Launch(unsigned, unsigned, unsigned, void**);

static int depth = 0;
static void* expected_stream = (void*)7;

#define API extern "C" __attribute__((visibility("default"))) int
enum { INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500, INVALID_VALUE = 1 };

API cuInit(unsigned) { return 0; }
API cuDeviceGet(int* device, int ordinal) { return *device = 40 + ordinal, 0; }
API cuDevicePrimaryCtxRetain(void** context, int device) { return *context = (void*)(long)(device + 1000), 0; }
API cuCtxPushCurrent_v2(void* context) {
    if (context != (void*)1040L) return INVALID_CONTEXT;
    return depth++, 0;
}
API cuCtxPopCurrent_v2(void** context) { return *context = (void*)1040L, depth-- > 0 ? 0 : INVALID_CONTEXT; }
API cuModuleLoadData(void** module, const void* image) {
    if (!depth) return INVALID_CONTEXT;
    return (*module = dlopen((const char*)image, RTLD_NOW | RTLD_LOCAL)) ? 0 : INVALID_IMAGE;
}
API cuModuleGetFunction(void** kernel, void* module, const char* name) {
    return (*kernel = dlsym(module, (std::string("launch_") + name).c_str())) ? 0 : NOT_FOUND;
}
API cuLaunchKernel(
    void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
    void* stream, void** arguments, void** extra
) {
    if (!depth) return INVALID_CONTEXT;
    if (!gx || !gy || gz != 1 || !bx || by != 1 || bz != 1 || shared || stream != expected_stream || extra)
        return INVALID_VALUE;
    return ((Launch*)kernel)(gx, gy, bx, arguments), 0;
}
API cuGetErrorString(int code, const char** text) {
    return *text = code == INVALID_IMAGE ? "device kernel image is invalid" : code == NOT_FOUND ? "named symbol not found" : "invalid", 0;
}
API contexts_left() { return depth; }
