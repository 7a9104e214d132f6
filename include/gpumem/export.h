/* GPUMEM_API marks what libgpumem.so exports. The library is built with hidden visibility, so that nothing else is:
 * `namespace GPUMEM_API gpumem {` exports what that body declares, but for what is marked GPUMEM_HIDDEN in it. */
#ifndef GPUMEM_EXPORT_H
#define GPUMEM_EXPORT_H

#if defined(__clang__) && defined(__cplusplus) /* which takes no GNU attribute before a namespace's name */
#define GPUMEM_API [[gnu::visibility("default")]]
#define GPUMEM_HIDDEN [[gnu::visibility("hidden")]]
#elif defined(__GNUC__)
#define GPUMEM_API __attribute__((visibility("default")))
#define GPUMEM_HIDDEN __attribute__((visibility("hidden")))
#else
#define GPUMEM_API
#define GPUMEM_HIDDEN
#endif

#endif /* GPUMEM_EXPORT_H */
