/* GPUMEM_API marks the exports of libgpumem.so, which is built with hidden visibility. `namespace GPUMEM_API gpumem {`
 * exports the declarations in its body, except those marked GPUMEM_HIDDEN. */
#ifndef GPUMEM_EXPORT_H
#define GPUMEM_EXPORT_H

#if defined(__clang__) && defined(__cplusplus) /* Clang accepts no GNU attribute before a namespace's name */
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
