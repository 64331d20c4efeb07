package api

import "reflect"

// Lists returns v with an empty list in place of each nil one, so that JSON has [] and
// not null. v itself does not change.
func Lists(v any) any {
	if v == nil {
		return nil
	}
	return withLists(reflect.ValueOf(v)).Interface()
}

func withLists(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		out := reflect.New(v.Type().Elem())
		out.Elem().Set(withLists(v.Elem()))
		return out.Convert(v.Type())
	case reflect.Struct:
		out := reflect.New(v.Type()).Elem()
		out.Set(v)
		for i := range v.NumField() {
			if out.Field(i).CanSet() {
				out.Field(i).Set(withLists(v.Field(i)))
			}
		}
		return out
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return v // a text, or JSON
		}
		out := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			out.Index(i).Set(withLists(v.Index(i)))
		}
		return out
	}
	return v
}
