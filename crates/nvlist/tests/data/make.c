/*
 * Writes the sample lists of this directory with OpenZFS's own libnvpair (Debian's 2.1.11, in the root that peer/build-peer makes):
 *
 *   R=/tmp/peer/root; gcc -std=gnu99 -w -D_GNU_SOURCE -I$R/usr/include/libspl -I$R/usr/include/libzfs make.c \
 *     $R/lib/x86_64-linux-gnu/libnvpair.so.3 -Wl,-rpath,$R/lib/x86_64-linux-gnu -o /tmp/make && /tmp/make DIR
 */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <libnvpair.h>

static const char *dir;

static FILE *
create(const char *name, const char *suffix)
{
	char path[4096];
	snprintf(path, sizeof (path), "%s/%s.%s", dir, name, suffix);
	FILE *f = fopen(path, "w");
	if (f == NULL) {
		perror(path);
		exit(1);
	}
	return (f);
}

static void
save(const char *name, nvlist_t *list)
{
	for (int encoding = 0; encoding < 2; encoding++) {
		char *packed = NULL;
		size_t size;
		if (nvlist_pack(list, &packed, &size, encoding, 0) != 0) {
			fprintf(stderr, "%s: cannot pack\n", name);
			exit(1);
		}
		FILE *f = create(name, encoding == NV_ENCODE_XDR ? "xdr" : "native");
		fwrite(packed, 1, size, f);
		fclose(f);
		free(packed);
	}
	FILE *f = create(name, "json");
	if (nvlist_print_json(f, list) != 0)
		fprintf(stderr, "%s: no JSON\n", name);
	fclose(f);
	if (freopen("/dev/null", "w", stdout) == NULL)
		exit(1);
	char path[4096];
	snprintf(path, sizeof (path), "%s/%s.txt", dir, name);
	if (freopen(path, "w", stdout) == NULL)
		exit(1);
	dump_nvlist(list, 4);
	fflush(stdout);
}

/* One pair of each type; signs: with numbers whose top bit is set. */
static nvlist_t *
types(int signs)
{
	nvlist_t *l;
	nvlist_alloc(&l, NV_UNIQUE_NAME, 0);
	nvlist_add_boolean(l, "boolean");
	nvlist_add_boolean_value(l, "yes", B_TRUE);
	nvlist_add_boolean_value(l, "no", B_FALSE);
	nvlist_add_byte(l, "byte", signs ? 0xfe : 0x7e);
	nvlist_add_int8(l, "int8", signs ? -2 : 2);
	nvlist_add_uint8(l, "uint8", signs ? 0xfd : 0x7d);
	nvlist_add_int16(l, "int16", signs ? -300 : 300);
	nvlist_add_uint16(l, "uint16", 65530);
	nvlist_add_int32(l, "int32", -70000);
	nvlist_add_uint32(l, "uint32", 4294967290u);
	nvlist_add_int64(l, "int64", -5000000000ll);
	nvlist_add_uint64(l, "uint64", 18446744073709551610ull);
	nvlist_add_hrtime(l, "hrtime", 1234567890123ll);
	nvlist_add_double(l, "double", -1234.5678);
	nvlist_add_string(l, "string", "tank/home@monday");
	nvlist_add_string(l, "", "the name is empty");
	nvlist_add_string(l, "empty string", "");
	nvlist_add_string(l, "escapes", "\"q\" \\b\\ \n\r\t\f\b\x01\x7f gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\xa7");
	boolean_t booleans[] = { B_TRUE, B_FALSE, B_TRUE };
	nvlist_add_boolean_array(l, "boolean array", booleans, 3);
	uchar_t bytes[] = { 1, 2, 0xff, 4, 5 };
	nvlist_add_byte_array(l, "byte array", bytes, 5);
	int8_t i8[] = { 1, signs ? -1 : 127, 3 };
	nvlist_add_int8_array(l, "int8 array", i8, 3);
	uint8_t u8[] = { 1, signs ? 255 : 127, 3, 4, 5, 6, 7, 8, 9 };
	nvlist_add_uint8_array(l, "uint8 array", u8, 9);
	int16_t i16[] = { 1, signs ? -1000 : 1000 };
	nvlist_add_int16_array(l, "int16 array", i16, 2);
	uint16_t u16[] = { 1, 65000, 3 };
	nvlist_add_uint16_array(l, "uint16 array", u16, 3);
	int32_t i32[] = { -1, 2, 3 };
	nvlist_add_int32_array(l, "int32 array", i32, 3);
	uint32_t u32[] = { 4000000000u };
	nvlist_add_uint32_array(l, "uint32 array", u32, 1);
	int64_t i64[] = { -1, 1ll << 62 };
	nvlist_add_int64_array(l, "int64 array", i64, 2);
	uint64_t u64[] = { 1ull << 63, 2, 3 };
	nvlist_add_uint64_array(l, "uint64 array", u64, 3);
	char *strings[] = { "one", "", "three" };
	nvlist_add_string_array(l, "string array", strings, 3);
	return (l);
}

/* An array of each type without an element: their XDR sizes count words that are not there. */
static nvlist_t *
empties(void)
{
	nvlist_t *l, *none[1];
	char dummy[8] = { 0 };
	nvlist_alloc(&l, NV_UNIQUE_NAME, 0);
	nvlist_add_uint64_array(l, "uint64", (void *)dummy, 0);
	nvlist_add_boolean_array(l, "boolean", (void *)dummy, 0);
	nvlist_add_byte_array(l, "byte", (void *)dummy, 0);
	nvlist_add_int8_array(l, "int8", (void *)dummy, 0);
	nvlist_add_uint8_array(l, "uint8", (void *)dummy, 0);
	nvlist_add_int32_array(l, "int32", (void *)dummy, 0);
	nvlist_add_string_array(l, "string", (void *)dummy, 0);
	nvlist_add_nvlist_array(l, "nvlist", (void *)none, 0);
	nvlist_add_uint64(l, "after", 7);
	return (l);
}

static nvlist_t *
nested(void)
{
	nvlist_t *l, *leaf, *typed, *multi, *empty;
	nvlist_alloc(&l, NV_UNIQUE_NAME, 0);
	nvlist_alloc(&typed, NV_UNIQUE_NAME_TYPE, 0);
	nvlist_add_uint64(typed, "same", 1);
	nvlist_add_string(typed, "same", "two");
	nvlist_add_boolean(typed, "same");
	nvlist_add_uint64(typed, "same", 4);
	nvlist_alloc(&multi, 0, 0);
	nvlist_add_uint64(multi, "again", 1);
	nvlist_add_uint64(multi, "other", 2);
	nvlist_add_uint64(multi, "again", 3);
	nvlist_alloc(&empty, NV_UNIQUE_NAME, 0);
	leaf = empties();
	nvlist_add_nvlist(l, "leaf", leaf);
	nvlist_add_nvlist(l, "typed", typed);
	nvlist_add_nvlist(l, "multi", multi);
	nvlist_add_nvlist(l, "empty", empty);
	nvlist_t *three[] = { typed, empty, leaf };
	nvlist_add_nvlist_array(l, "three", three, 3);
	nvlist_add_nvlist_array(l, "types", (nvlist_t *[]){ types(0) }, 1);
	nvlist_add_uint64(l, "after", 9);
	nvlist_t *outer;
	nvlist_alloc(&outer, NV_UNIQUE_NAME, 0);
	nvlist_add_nvlist(outer, "inner", l);
	nvlist_add_string(outer, "after", "inner");
	return (outer);
}

int
main(int argc, char **argv)
{
	dir = argc > 1 ? argv[1] : ".";
	setlocale(LC_ALL, "C.UTF-8");
	nvlist_t *none;
	nvlist_alloc(&none, 0, 0);
	save("none", none);
	save("types", types(0));
	save("signs", types(1));
	save("empties", empties());
	save("nested", nested());
	return (0);
}
