/* The library can be closed while a thread lives that used it. Run by ci/bindings.sh.
 *
 *   unload LIBRARY
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_barrier_t used, closed;

struct calls {
    int (*tick)(void *, unsigned);
    const char *(*last_error)(void);
    int good;
};

static void *uses(void *argument)
{
    struct calls *calls = argument;
    calls->good = calls->tick(NULL, 0) == 1 && strstr(calls->last_error(), "null") != NULL;
    pthread_barrier_wait(&used);
    pthread_barrier_wait(&closed);
    return NULL; /* ends after the library is gone: nothing of it may be called now */
}

int main(int argc, char **argv)
{
    for (int i = 0; i < 20 && argc > 1; i++) {
        struct calls calls;
        pthread_t thread;
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        *(void **)&calls.tick = dlsym(library, "tw_tick");
        *(void **)&calls.last_error = dlsym(library, "tw_last_error");
        pthread_barrier_init(&used, NULL, 2);
        pthread_barrier_init(&closed, NULL, 2);
        if (!calls.tick || !calls.last_error || pthread_create(&thread, NULL, uses, &calls))
            return 1;
        pthread_barrier_wait(&used);
        if (dlclose(library) != 0)
            return 1;
        pthread_barrier_wait(&closed);
        pthread_join(thread, NULL);
        if (!calls.good)
            return 1;
    }
    puts(dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) ? "it stays loaded" : "it is gone");
    return 0;
}
